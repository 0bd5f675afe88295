// Reads untrusted JSON: the file as a value, and fields of an expected type.
// Threads: thread-safe (pure functions). Lifetime: returned pointers point into the value given.
// Errors: invalid, in one line, naming the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::format {
struct DocumentBounds;  // format/json.h
}

namespace dspack::runtime {

/// Read as strictly as format::parse_json does; objects keep the order of their keys, and a whole number beyond 64 bits
/// is kept as its digits (long_number). Errors: those of parse_json.
[[nodiscard]] Result<OrderedJson> parse_ordered_json(std::string_view text, const format::DocumentBounds& bounds);
/// Puts a member that an object does not have yet behind the others. (The library's own ways look through all of them
/// first, which for each of a stranger's members takes quadratic time.)
void add_member(OrderedJson& object, std::string name, OrderedJson value);
/// The digits of a whole number beyond 64 bits, with its sign; empty for every other value. To all who ask for its type
/// such a number is binary, which JSON as text never is, and no number.
[[nodiscard]] std::string_view long_number(const OrderedJson& value);

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

// JSON text as Python's json.dumps(value, ensure_ascii=False) writes it, byte for byte: that is the filter `tojson` of
// chat templates, and models were trained on it.
// Recursion is as deep as the value, which its parser bounded.

/// `compact`: separators=(',', ':'), else (', ', ': '). Numbers: whole ones of any size, finite others as Python's
/// repr.
[[nodiscard]] std::string python_json(const OrderedJson& value, bool compact);

/// A finite number as Python's repr writes a float: the shortest digits that give it back, always with a point or an
/// exponent.
[[nodiscard]] std::string python_float(double value);

}  // namespace dspack::runtime
