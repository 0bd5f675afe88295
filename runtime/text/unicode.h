// UTF-8 texts and the few Unicode facts that tokenizers need. format/base/foreign_text.h splits a text into characters;
// codepoint_set.h has categories.
// Threads: thread-safe (pure functions). Errors: none; broken UTF-8 has a defined meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/base/foreign_text.h"

namespace dspack::runtime {

using dspack::decode_utf8_character;
using dspack::first_utf8_unit;
using dspack::Utf8Unit;

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

[[nodiscard]] bool is_valid_utf8(std::string_view text);
/// Every broken or incomplete sequence becomes one U+FFFD.
[[nodiscard]] std::string to_valid_utf8(std::string_view bytes);

/// Whether it is a byte of a UTF-8 sequence after the first one.
[[nodiscard]] constexpr bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}
/// Bytes of the character that starts with `lead`, in valid UTF-8.
[[nodiscard]] constexpr size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}
void append_utf8(std::string& text, uint32_t codepoint);
/// The last character of valid text; empty if there is none.
[[nodiscard]] std::string_view last_character(std::string_view text);

[[nodiscard]] constexpr bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}
/// The Unicode property White_Space, unchanged since Unicode 6.3.
[[nodiscard]] constexpr bool is_white_space(uint32_t codepoint) {
  return (codepoint >= 0x09 && codepoint <= 0x0D) || codepoint == 0x20 || codepoint == 0x85 || codepoint == 0xA0 ||
         codepoint == 0x1680 || (codepoint >= 0x2000 && codepoint <= 0x200A) || codepoint == 0x2028 ||
         codepoint == 0x2029 || codepoint == 0x202F || codepoint == 0x205F || codepoint == 0x3000;
}
/// Python's str.isspace: White_Space and the information separators.
[[nodiscard]] constexpr bool is_python_space(uint32_t codepoint) {
  return is_white_space(codepoint) || (codepoint >= 0x1C && codepoint <= 0x1F);
}
/// Bytes of white space at the start and at the end of valid text.
[[nodiscard]] size_t leading_white_space(std::string_view text);
[[nodiscard]] size_t trailing_white_space(std::string_view text);

}  // namespace dspack::runtime
