// Reading JSON from strangers: the file as a value, and fields of an expected type.
// Threads: thread-safe (pure functions). Lifetime: returned pointers point into the value given.
// Errors: invalid, in one line, naming the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::format {
struct DocumentBounds;  // document_bounds.h
}

namespace dspack::runtime {

/// An object, read as strictly as format::parse_json does. `name` is the file's name, for messages.
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view text, std::string_view name,
                                                const format::DocumentBounds& bounds);

/// The member `key`; null if it is absent or JSON's null.
[[nodiscard]] const nlohmann::json* find_field(const nlohmann::json& object, const char* key);

// The next ones fail if the member has another type; absent and null are the same.
[[nodiscard]] Result<const nlohmann::json*> object_field(const nlohmann::json& object, const char* key);  // required
[[nodiscard]] Result<const nlohmann::json*> array_field(const nlohmann::json& object, const char* key);  // null: absent
[[nodiscard]] Result<std::optional<std::string>> string_field(const nlohmann::json& object, const char* key);
[[nodiscard]] Result<std::string> required_string(const nlohmann::json& object, const char* key);
[[nodiscard]] Result<bool> bool_field(const nlohmann::json& object, const char* key, bool otherwise);

}  // namespace dspack::runtime
