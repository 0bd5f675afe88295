// JSON from outside, read strictly: duplicate keys, excessive depth and trailing bytes are errors. Values are counted
// before they are kept, so that no short text becomes a large tree.
// Threads: thread-safe (pure functions). Errors: invalid, with the place; budget (more than the kind of document may
// hold).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::format {

using Json = nlohmann::json;
struct DocumentBounds;  // document_bounds.h

[[nodiscard]] Result<Json> parse_json(std::string_view text, const DocumentBounds& bounds);

/// What the parser of JSON says of broken text, as a line for people.
[[nodiscard]] Error json_error(const Json::exception& exception);

/// One line, keys sorted, no spaces: equal values give equal bytes.
[[nodiscard]] std::string canonical_json(const Json& value);

// Fields of an object, checked. `object` must be an object; errors name the key.
[[nodiscard]] Result<uint64_t> json_uint(const Json& object, std::string_view key);
[[nodiscard]] Result<std::string> json_string(const Json& object, std::string_view key);
[[nodiscard]] Result<const Json*> json_array(const Json& object, std::string_view key);
[[nodiscard]] Result<const Json*> json_object(const Json& object, std::string_view key);

}  // namespace dspack::format
