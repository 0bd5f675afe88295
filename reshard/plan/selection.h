// Which tensors a recipe takes: by layer, expert, role or name.
// Threads: plain values and pure functions. Errors: invalid, with the part of the text that is wrong.
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

/// Numbers as inclusive ranges, ascending and apart: {0-2, 5}.
using NumberSet = std::vector<std::pair<uint32_t, uint32_t>>;

/// "0-2,5": numbers and inclusive ascending ranges with commas between, in any order.
[[nodiscard]] Result<NumberSet> parse_numbers(std::string_view text);
/// The inverse, in the fewest ranges.
[[nodiscard]] std::string to_string(const NumberSet& numbers);

/// A tensor fits if it fits every field that is set. One that belongs to no layer or expert fits no number of them.
struct Selector {
  std::optional<NumberSet> layers{};
  std::optional<NumberSet> experts{};  // of the layers above, or of all
  std::vector<format::Role> roles{};   // any of them; empty: every role
  std::vector<std::string> names{};    // shell patterns, of which any fits the whole name; empty: every name
};

[[nodiscard]] bool fits(const Selector& selector, const format::TensorEntry& tensor);

/// {"layers":"3-5","experts":"0-127","role":"routed_expert","name":"*.weight"}: at least one of these keys; role and
/// name may be lists.
[[nodiscard]] Result<Selector> selector_of(const format::Json& value);
[[nodiscard]] format::Json selector_json(const Selector& selector);
/// The same as a command line has it: "layers=3-5 experts=0-127 role=routed_expert"; a role or name may come again.
[[nodiscard]] Result<Selector> parse_selector(std::string_view text);

struct Selection {
  std::vector<Selector> include{};  // what fits any of them is taken; empty: everything is
  std::vector<Selector> exclude{};  // what fits any of these is not
};

[[nodiscard]] bool takes(const Selection& selection, const format::TensorEntry& tensor);

/// One selector or a list of them, as a recipe's "include" and "exclude" have them.
[[nodiscard]] Result<std::vector<Selector>> selectors_of(const format::Json& value);
[[nodiscard]] format::Json selectors_json(const std::vector<Selector>& selectors);

}  // namespace dspack::reshard
