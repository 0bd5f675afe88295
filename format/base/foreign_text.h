// Text from outside (names, configurations, manifests, answers of servers and of models): read as UTF-8, one character
// at a time and strictly (no overlong forms, no surrogates, nothing above U+10FFFF), and on its way to a person: what
// could steer a terminal, forge a line or hide what is written becomes an escape, and long text is cut. Every print
// site of the programs comes through here (format/cli/output.h).
// Threads: thread-safe (pure functions). Errors: none; any bytes are accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
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

/// Bytes of a whole message on one line; what is far longer was made long by text from outside.
inline constexpr size_t kMessageBytes = 380;
/// Bytes of one piece of text from outside in a report.
inline constexpr size_t kPieceBytes = 200;

/// Whether a character is never shown as it is: control characters (C0 with line feed and tab, DEL, C1), marks that
/// change the direction of writing (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069), and the line and
/// paragraph separators U+2028 and U+2029.
[[nodiscard]] bool is_unprintable(uint32_t codepoint);

/// On one line: an unprintable character becomes \uXXXX, a byte that is no UTF-8 \xXX.
[[nodiscard]] std::string printable(std::string_view text);

/// Of several lines: the same, but line feeds and tabs stay. JSON that nlohmann has written is the same JSON
/// afterwards: such characters are in its strings only, and \uXXXX is how JSON spells them.
[[nodiscard]] std::string printable_text(std::string_view text);

/// At most `max_bytes` bytes: "..." in place of the middle of a longer text, whole characters on both sides of it.
[[nodiscard]] std::string shortened(std::string_view text, size_t max_bytes);

/// A piece of text from outside: printable, at most kPieceBytes.
[[nodiscard]] std::string brief(std::string_view text);

/// The beginning of a piece of text from outside, in quotes: printable, some 60 bytes.
[[nodiscard]] std::string quote(std::string_view text);

/// A whole message on one line: printable, without passwords. Of one longer than kMessageBytes the long words lose
/// their middles, so that what the message says about them stays; what is then far longer still is cut to
/// kMessageBytes.
[[nodiscard]] std::string message_line(std::string_view text);

/// The text without the "user:password@" of every URL in it.
[[nodiscard]] std::string without_passwords(std::string_view text);

}  // namespace dspack
