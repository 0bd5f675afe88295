// JSON from outside, read strictly: duplicate keys, excessive depth and trailing bytes are errors.
// Threads: thread-safe (pure functions). Errors: invalid, with the place.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::format {

using Json = nlohmann::json;

[[nodiscard]] Result<Json> parse_json(std::string_view text);

/// One line, keys sorted, no spaces: equal values give equal bytes.
[[nodiscard]] std::string canonical_json(const Json& value);

// Fields of an object, checked. `object` must be an object; errors name the key.
[[nodiscard]] Result<uint64_t> json_uint(const Json& object, std::string_view key);
[[nodiscard]] Result<std::string> json_string(const Json& object, std::string_view key);
[[nodiscard]] Result<const Json*> json_array(const Json& object, std::string_view key);
[[nodiscard]] Result<const Json*> json_object(const Json& object, std::string_view key);

}  // namespace dspack::format
