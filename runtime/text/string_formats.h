// The formats of JSON Schema's strings, as patterns: of each at least the strings that are written daily, and none that
// is not of the format. Sources: JSON Schema Validation 2020-12, section 7.3, and the RFCs that it names.
// Threads: thread-safe (pure functions). Errors: none.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace dspack::runtime {

/// All of them.
[[nodiscard]] std::vector<std::string_view> known_formats();
/// Whether strings can be held to a format; OpenAPI's, which say nothing of a string's characters, are among them.
[[nodiscard]] bool is_known_format(std::string_view name);
/// The pattern of a known format; nullopt: it has any string.
[[nodiscard]] std::optional<std::string_view> pattern_of_format(std::string_view name);

}  // namespace dspack::runtime
