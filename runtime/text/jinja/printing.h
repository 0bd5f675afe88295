// Values as text: as Python prints them, and as JSON.
// Threads: thread-safe (pure functions). Errors: budget; invalid (no JSON).
#pragma once

#include <optional>
#include <string>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

/// Python's str(); nothing for what is undefined.
[[nodiscard]] Result<std::string> to_text(const Value& value, Budget& budget);
/// Python's repr().
[[nodiscard]] Result<std::string> to_repr(const Value& value, Budget& budget);

struct JsonStyle {
  std::string comma = ", ";
  std::string colon = ": ";
  std::optional<std::string> indent = {};  // of one level
  bool sort_keys = false;
  bool ascii = false;
};
/// As json.dumps writes it.
[[nodiscard]] Result<std::string> to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace dspack::runtime::jinja
