// UTF-8 and the few Unicode facts that tokenizers need.
//
// The tables that Hugging Face tokenizers splits by are those of Unicode 16.0 (Oniguruma 6.9.10); the regex library
// here may be older. `recent_additions` lists what came after Unicode 14.0, so that text splits alike everywhere.
// Threads: thread-safe (pure functions). Errors: none; broken text has a defined meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dspack::runtime {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// What the first bytes of a text are: a character, a broken sequence (the longest start of a character that cannot go
/// on, or one stray byte: what Rust and Python replace by one U+FFFD), or a start of a character that ends too early.
struct Utf8Unit {
  enum class Kind { character, broken, incomplete };
  Kind kind;
  size_t bytes;
};
[[nodiscard]] Utf8Unit first_utf8_unit(std::string_view bytes);

[[nodiscard]] bool is_valid_utf8(std::string_view text);
/// Every broken or incomplete sequence becomes one U+FFFD.
[[nodiscard]] std::string to_valid_utf8(std::string_view bytes);

/// The code point of one valid character.
[[nodiscard]] uint32_t decode_utf8_character(std::string_view character);
void append_utf8(std::string& text, uint32_t codepoint);
/// The last character of valid text; empty if there is none.
[[nodiscard]] std::string_view last_character(std::string_view text);

/// The Unicode property White_Space, unchanged since Unicode 6.3.
[[nodiscard]] constexpr bool is_white_space(uint32_t codepoint) {
  return (codepoint >= 0x09 && codepoint <= 0x0D) || codepoint == 0x20 || codepoint == 0x85 || codepoint == 0xA0 ||
         codepoint == 0x1680 || (codepoint >= 0x2000 && codepoint <= 0x200A) || codepoint == 0x2028 ||
         codepoint == 0x2029 || codepoint == 0x202F || codepoint == 0x205F || codepoint == 0x3000;
}
/// Bytes of white space at the start and at the end of valid text.
[[nodiscard]] size_t leading_white_space(std::string_view text);
[[nodiscard]] size_t trailing_white_space(std::string_view text);

/// Inclusive on both sides.
struct CodepointRange {
  uint32_t first;
  uint32_t last;
};
/// Characters of the major category L, M, N, P or S that Unicode 15.0 to 16.0 added. Empty for other letters.
[[nodiscard]] std::span<const CodepointRange> recent_additions(char category);

}  // namespace dspack::runtime
