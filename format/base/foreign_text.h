// Text from outside (names, configurations, manifests, replies of servers and models). Decodes UTF-8 strictly, one
// character at a time (no overlong forms, no surrogates, nothing above U+10FFFF). Before text is shown to a person,
// characters that could control a terminal, forge a line or hide text are escaped, and long text is cut. All output of
// the programs passes through here (format/cli/output.h).
// Threads: thread-safe (pure functions). Errors: none; any bytes are accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dspack {

/// The kind and length of the first unit of a text: a character, a broken sequence (the longest prefix of a character
/// that cannot be continued, or one stray byte: Rust and Python replace it by one U+FFFD), or an incomplete character
/// at the end of the text.
struct Utf8Unit {
  enum class Kind { character, broken, incomplete };
  Kind kind;
  size_t bytes;
};
[[nodiscard]] Utf8Unit first_utf8_unit(std::string_view bytes);

/// The code point of one valid character.
[[nodiscard]] uint32_t decode_utf8_character(std::string_view character);

/// Length in bytes to which an overlong message is cut; only text from outside makes messages far longer.
inline constexpr size_t kMessageBytes = 380;
/// Length in bytes to which one piece of text from outside is cut in a report.
inline constexpr size_t kPieceBytes = 200;

/// Whether a character is always escaped: control characters (C0 with line feed and tab, DEL, C1), marks that change
/// the direction of writing (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069), and the line and paragraph
/// separators U+2028 and U+2029.
[[nodiscard]] bool is_unprintable(uint32_t codepoint);

/// One line: an unprintable character becomes \uXXXX, a byte that is not valid UTF-8 \xXX.
[[nodiscard]] std::string printable(std::string_view text);

/// Several lines: as `printable`, but line feeds and tabs stay. JSON written by nlohmann stays equivalent JSON: it has
/// unprintable characters only within strings, where \uXXXX is JSON's own escape.
[[nodiscard]] std::string printable_text(std::string_view text);

/// At most `max_bytes` bytes: in a longer text "..." replaces the middle, with whole characters on both sides.
[[nodiscard]] std::string shortened(std::string_view text, size_t max_bytes);

/// A piece of text from outside: printable, at most kPieceBytes.
[[nodiscard]] std::string brief(std::string_view text);

/// The beginning of a piece of text from outside, in quotes: printable, some 60 bytes.
[[nodiscard]] std::string quote(std::string_view text);

/// A whole message on one line: printable, without passwords. If it exceeds kMessageBytes, the middles of long words
/// are cut, so that the message's own words stay; if it is then still far longer, it is cut to kMessageBytes.
[[nodiscard]] std::string message_line(std::string_view text);

/// The text without the "user:password@" of its URLs.
[[nodiscard]] std::string without_passwords(std::string_view text);

}  // namespace dspack
