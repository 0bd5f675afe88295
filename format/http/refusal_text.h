// What a server says to its refusal, fit for an error message: one short line, and nothing of a link that could be used
// by who reads it.
// Threads: thread-safe (pure functions).
#pragma once

#include <string>
#include <string_view>

namespace dspack::format {

/// Of a body (or a header): "error", "message" or the messages of "errors" of JSON, Code and Message of a storage's
/// XML, else the text itself; not a page of HTML. One line, as brief() of foreign_text.h has it; empty: nothing of use.
[[nodiscard]] std::string refusal_text(std::string_view body);

/// The text with "?..." cut off every URL in it: what follows may be a signature.
[[nodiscard]] std::string without_queries(std::string_view text);

/// The text with every occurrence of `secret` replaced; an empty secret leaves it as it is.
[[nodiscard]] std::string without_secret(std::string text, std::string_view secret);

}  // namespace dspack::format
