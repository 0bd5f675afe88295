// The formats of JSON Schema's strings, as patterns: each accepts at least the common strings of its format, and none
// that is invalid. Sources: JSON Schema Validation 2020-12, section 7.3, and the RFCs that it names.
// Threads: thread-safe (pure functions). Errors: none.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace dspack::runtime {

/// The names of all formats.
[[nodiscard]] std::vector<std::string_view> known_formats();
/// Whether a format is known; including OpenAI's formats that do not restrict a string's characters.
[[nodiscard]] bool is_known_format(std::string_view name);
/// The pattern of a known format; nullopt: it accepts any string.
[[nodiscard]] std::optional<std::string_view> pattern_of_format(std::string_view name);

}  // namespace dspack::runtime
