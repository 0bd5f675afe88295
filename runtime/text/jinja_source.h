// Decides whether two Jinja sources are the same program, without running either.
//
// The canonical form leaves out what has no meaning to Jinja as transformers sets it up (trim_blocks, lstrip_blocks):
// comments, white space between the tokens of a tag, white space that the tags around it remove, the kind of quotes,
// and how a character of a string is escaped. So "'\n'" written as an escape or as a line feed is the same, and a
// template in one line is the same as its indented form. Sources with equal canonical forms render equally; the reverse
// does not hold. Threads: thread-safe (pure functions). Errors: canonical_jinja: unsupported (not Jinja, or a raw
// block).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::runtime {

[[nodiscard]] Result<std::string> canonical_jinja(std::string_view source);

/// FNV-1a, 64 bits, of the text: tells apart templates that people wrote; nobody gains by forging one.
[[nodiscard]] uint64_t fingerprint(std::string_view text);

}  // namespace dspack::runtime
