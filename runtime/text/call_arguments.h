// Converts the arguments of a call, as a model wrote them, to JSON: text between marks becomes the value that the
// tool's schema means; JSON keeps its text, since numbers may have more digits than a 64-bit value.
// Threads: pure functions. Errors: none; an empty schema allows everything.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// White space of JSON, and around marks.
inline constexpr std::string_view kReplySpace = " \t\r\n";
[[nodiscard]] std::string_view trimmed(std::string_view text);

/// Whether a text is one JSON object, as the arguments of a tool must be.
[[nodiscard]] bool is_json_object(std::string_view text);

/// The JSON for the argument `name` whose value is written as `text`. `parameters`: the tool's schema. If the text is
/// not JSON, or the schema allows a string but not the text's kind of JSON value, the result is a string of exactly
/// these bytes (or of the trimmed text, if only that is one of the strings that the schema lists); else it is the
/// trimmed JSON text.
[[nodiscard]] std::string argument_value(std::string_view text, const OrderedJson& parameters, std::string_view name);

/// A string as JSON; invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string json_string(std::string_view text);

/// A call written as {"name": .., "arguments": {..}}.
struct WrittenCall {
  std::string name;
  std::string arguments;  // as written; if they are a string, its content
};
/// nullopt: not such an object, or "name" or "arguments" is missing.
[[nodiscard]] std::optional<WrittenCall> read_written_call(std::string_view json_text);

}  // namespace dspack::runtime
