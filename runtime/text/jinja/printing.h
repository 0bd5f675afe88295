// Values as text: as Python prints them, and as JSON.
// Threads: thread-safe (pure functions). Errors: budget, cancelled; invalid (no JSON form).
#pragma once

#include <optional>
#include <string_view>

#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

/// Python's str(); nothing if undefined.
[[nodiscard]] Result<void> print(const Value& value, TextBuilder& into);
/// Python's repr().
[[nodiscard]] Result<void> print_repr(const Value& value, TextBuilder& into);
/// The value itself if it is a text, else its str().
[[nodiscard]] Result<Value> as_text(const Value& value, Heap& heap);

struct JsonStyle {
  std::string_view comma = ", ";
  std::string_view colon = ": ";
  std::optional<std::string_view> indent = {};  // per level
  bool sort_keys = false;
  bool ascii = false;
};
/// As json.dumps.
[[nodiscard]] Result<void> print_json(const Value& value, const JsonStyle& style, TextBuilder& into);

}  // namespace dspack::runtime::jinja
