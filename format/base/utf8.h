// UTF-8, one character at a time, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
// Threads: thread-safe (pure functions). Errors: none; broken text has a defined meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dspack {

/// What the first bytes of a text are: a character, a broken sequence (the longest start of a character that cannot go
/// on, or one stray byte: what Rust and Python replace by one U+FFFD), or a start of a character that ends too early.
struct Utf8Unit {
  enum class Kind { character, broken, incomplete };
  Kind kind;
  size_t bytes;
};
[[nodiscard]] Utf8Unit first_utf8_unit(std::string_view bytes);

/// The code point of one valid character.
[[nodiscard]] uint32_t decode_utf8_character(std::string_view character);

}  // namespace dspack
