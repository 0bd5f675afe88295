// Which tensors a recipe takes: by layer, expert, role or name.
// Threads: plain values and pure functions. Errors: invalid, naming the wrong part of the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "format/json.h"

namespace dspack::reshard {

/// Numbers as inclusive ranges, ascending and disjoint: {0-2, 5}.
using NumberSet = std::vector<std::pair<uint32_t, uint32_t>>;

/// Parses "0-2,5": numbers and inclusive ascending ranges, separated by commas, in any order.
[[nodiscard]] Result<NumberSet> parse_numbers(std::string_view text);
/// The inverse, in the fewest ranges.
[[nodiscard]] std::string to_string(const NumberSet& numbers);

/// A tensor fits if it fits every field that is set. A tensor without a layer or expert fits no `layers` or `experts`.
struct Selector {
  std::optional<NumberSet> layers{};
  std::optional<NumberSet> experts{};  // in the layers above; without `layers`, in all
  std::vector<format::Role> roles{};   // any of these; empty: every role
  std::vector<std::string> names{};    // shell patterns, one of which must match the whole name; empty: every name
};

[[nodiscard]] bool fits(const Selector& selector, const format::TensorEntry& tensor);

/// Parses {"layers":"3-5","experts":"0-127","role":"routed_expert","name":"*.weight"}: at least one of these keys; role
/// and name may be lists.
[[nodiscard]] Result<Selector> selector_of(const format::Json& value);
[[nodiscard]] format::Json selector_json(const Selector& selector);
/// Parses the command-line form "layers=3-5 experts=0-127 role=routed_expert"; role and name may be repeated.
[[nodiscard]] Result<Selector> parse_selector(std::string_view text);

struct Selection {
  std::vector<Selector> include{};  // a tensor is taken if it fits any of these; empty: all are
  std::vector<Selector> exclude{};  // except those that fit any of these
};

[[nodiscard]] bool takes(const Selection& selection, const format::TensorEntry& tensor);

/// Parses a recipe's "include" or "exclude": one selector or a list.
[[nodiscard]] Result<std::vector<Selector>> selectors_of(const format::Json& value);
[[nodiscard]] format::Json selectors_json(const std::vector<Selector>& selectors);

}  // namespace dspack::reshard
