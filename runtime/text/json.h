// Reads untrusted JSON as values, and writes values as text. (Fields of an expected type: json_fields.h.)
// Threads: thread-safe (pure functions). Errors: invalid, in one line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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
/// Appends a member that the object lacks. (The library's own functions search all members first, which takes quadratic
/// time for a stranger's object.)
void add_member(OrderedJson& object, std::string name, OrderedJson value);
/// The digits of a whole number beyond 64 bits, with its sign; empty for every other value. The type of such a number
/// is binary, which no other value from JSON text has, and not a number type.
[[nodiscard]] std::string_view long_number(const OrderedJson& value);

/// An object, read as strictly as format::parse_json does. `name` is the file's name, for messages.
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view text, std::string_view name,
                                                const format::DocumentBounds& bounds);

/// JSON on one line; invalid UTF-8 becomes U+FFFD, long integers keep all digits.
[[nodiscard]] std::string json_text(const OrderedJson& value);

// JSON text as Python's json.dumps(value, ensure_ascii=False) writes it, byte for byte: chat templates' filter `tojson`
// is that, and models were trained on it.
// Recursion is as deep as the value, which its parser bounded.

/// `compact`: separators=(',', ':'), else (', ', ': '). Writes whole numbers of any size, and other finite numbers as
/// Python's repr.
[[nodiscard]] std::string python_json(const OrderedJson& value, bool compact);

/// A finite number as Python's repr writes a float: the shortest digits that round-trip, always with a point or an
/// exponent.
[[nodiscard]] std::string python_float(double value);

}  // namespace dspack::runtime
