// The arguments of a call as JSON, out of what a model wrote: text between marks becomes the value that the tool's
// schema means, and JSON stays as it was written, since numbers may have more digits than a value of 64 bits has.
// Threads: pure functions. Errors: none; a schema that says nothing allows everything.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// Whether a text is one object of JSON: arguments that a tool can be called with.
[[nodiscard]] bool is_json_object(std::string_view text);

/// The value of the argument `name` that `text` stands for, as JSON. `parameters`: the tool's schema. Where that allows
/// no JSON value of the text's kind but a string, or the text is no JSON, it is a string of just these bytes (of a
/// schema that lists its strings: one of them, if it is one but for white space around it); else it is the JSON text
/// without the white space around it.
[[nodiscard]] std::string argument_value(std::string_view text, const OrderedJson& parameters, std::string_view name);

/// A string as JSON; bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string json_string(std::string_view text);

/// A call that is written as {"name": .., "arguments": {..}}.
struct WrittenCall {
  std::string name;
  std::string arguments;  // as they are written; the text, where they are a string
};
/// Nullopt: it is not such an object, or lacks one of the two.
[[nodiscard]] std::optional<WrittenCall> read_written_call(std::string_view json_text);

}  // namespace dspack::runtime
