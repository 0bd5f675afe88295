#include "format/base/foreign_text.h"

#include <algorithm>

namespace dspack {
namespace {

/// Length of a character by its first byte; 0 if no character starts with it.
size_t announced_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// Whether `byte` may be at `index` (the first byte has index 0) of a character that starts with `lead`: the second
/// byte excludes overlong forms, surrogates and values above U+10FFFF (Unicode standard, table 3-7).
bool continues(unsigned char lead, size_t index, unsigned char byte) {
  if (index == 1) {
    if (lead == 0xE0) return byte >= 0xA0 && byte <= 0xBF;
    if (lead == 0xED) return byte >= 0x80 && byte <= 0x9F;
    if (lead == 0xF0) return byte >= 0x90 && byte <= 0xBF;
    if (lead == 0xF4) return byte >= 0x80 && byte <= 0x8F;
  }
  return byte >= 0x80 && byte <= 0xBF;
}

}  // namespace

Utf8Unit first_utf8_unit(std::string_view bytes) {
  if (bytes.empty()) return {Utf8Unit::Kind::incomplete, 0};
  const auto lead = static_cast<unsigned char>(bytes[0]);
  const size_t length = announced_length(lead);
  if (length == 0) return {Utf8Unit::Kind::broken, 1};
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Unit::Kind::incomplete, i};
    if (!continues(lead, i, static_cast<unsigned char>(bytes[i]))) return {Utf8Unit::Kind::broken, i};
  }
  return {Utf8Unit::Kind::character, length};
}

uint32_t decode_utf8_character(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (lead < 0x80) return lead;
  uint32_t value = lead & (0x7Fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) {
    value = (value << 6) | (static_cast<unsigned char>(character[i]) & 0x3Fu);
  }
  return value;
}

namespace {

constexpr std::string_view kGap = "...";
constexpr std::string_view kBlank = " \t\r\n";

void append_hex(std::string& line, uint32_t value, int digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int digit = digits - 1; digit >= 0; --digit)
    line += kDigits[(value >> (4 * digit)) & 0xF];
}

/// `kept`: unprintable characters that stay.
std::string escaped(std::string_view text, std::string_view kept) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = first_utf8_unit(text);
    const std::string_view piece = text.substr(0, unit.bytes);
    text.remove_prefix(unit.bytes);
    if (unit.kind != Utf8Unit::Kind::character) {
      for (const char byte : piece) {
        shown += "\\x";
        append_hex(shown, static_cast<unsigned char>(byte), 2);
      }
      continue;
    }
    const uint32_t codepoint = decode_utf8_character(piece);
    if (!is_unprintable(codepoint) || kept.find(piece) != std::string_view::npos) {
      shown += piece;
    } else {
      shown += "\\u";
      append_hex(shown, codepoint, 4);
    }
  }
  return shown;
}

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80;
}

/// At most `bytes` bytes from the beginning, without splitting a character.
std::string_view first_bytes(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && continues_character(text[bytes]))
    --bytes;
  return text.substr(0, bytes);
}

std::string_view last_bytes(std::string_view text, size_t bytes) {
  size_t begin = text.size() - std::min(bytes, text.size());
  while (begin < text.size() && continues_character(text[begin]))
    ++begin;
  return text.substr(begin);
}

/// Shortens every word of more than `long_bytes` to `max_bytes`.
std::string with_short_words(std::string_view line, size_t long_bytes, size_t max_bytes) {
  std::string shown;
  while (!line.empty()) {
    const size_t blanks = std::min(line.find_first_not_of(kBlank), line.size());
    shown += line.substr(0, blanks);
    line.remove_prefix(blanks);
    const size_t word = std::min(line.find_first_of(kBlank), line.size());
    shown += shortened(line.substr(0, word), word > long_bytes ? max_bytes : word);
    line.remove_prefix(word);
  }
  return shown;
}

/// Length of the user information with its '@' at the start of `rest`, which follows "://"; 0: there is none.
size_t user_info_bytes(std::string_view rest) {
  constexpr size_t kLongest = 1024;  // longer than any name and password; bounds the cost of a text full of "://"
  constexpr std::string_view kEnds = " \t\r\n\"<>";
  rest = rest.substr(0, kLongest);
  const std::string_view authority = rest.substr(0, std::min(rest.find('/'), rest.find_first_of(kEnds)));
  if (const size_t at = authority.rfind('@'); at != std::string_view::npos) return at + 1;
  // A slash in a password should be written as %2F. Such a URL reaches no server, but a message may contain it.
  const size_t colon = authority.rfind(':');
  if (colon == std::string_view::npos || authority.ends_with(']')) return 0;
  const bool is_port = authority.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  if (is_port) return 0;
  const size_t at = rest.substr(0, rest.find_first_of(kEnds)).rfind('@');
  return at == std::string_view::npos ? 0 : at + 1;
}

}  // namespace

bool is_unprintable(uint32_t codepoint) {
  if (codepoint < 0x20 || (codepoint >= 0x7F && codepoint <= 0x9F)) return true;
  return codepoint == 0x061C || codepoint == 0x200E || codepoint == 0x200F ||
         (codepoint >= 0x2028 && codepoint <= 0x202E) || (codepoint >= 0x2066 && codepoint <= 0x2069);
}

std::string printable(std::string_view text) {
  return escaped(text, "");
}

std::string printable_text(std::string_view text) {
  return escaped(text, "\n\t");
}

std::string shortened(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  if (max_bytes <= kGap.size()) return std::string(kGap.substr(0, max_bytes));
  const size_t room = max_bytes - kGap.size();
  return std::string(first_bytes(text, room - room / 2)).append(kGap).append(last_bytes(text, room / 2));
}

std::string brief(std::string_view text) {
  return shortened(printable(text), kPieceBytes);
}

std::string quote(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  const std::string_view shown = first_bytes(text, kMaxBytes);
  std::string quoted = "\"";
  quoted.append(printable(shown)).append(shown.size() < text.size() ? kGap : "");
  return quoted.append("\"");
}

std::string message_line(std::string_view text) {
  constexpr size_t kWordBytes = 100;
  constexpr size_t kLongWord = 160;         // a path of several folders stays whole: it is needed to find the file
  constexpr size_t kLookedAt = 64UL << 10;  // a hostile text of megabytes is cut before it is escaped
  constexpr size_t kOwnBytes = 520;         // the longest message of our own, full of figures: why --vram is too small
  std::string line = without_passwords(printable(shortened(text, kLookedAt)));
  if (line.size() > kMessageBytes) line = with_short_words(line, kLongWord, kWordBytes);
  return line.size() <= kOwnBytes ? line : shortened(line, kMessageBytes);
}

std::string without_passwords(std::string_view text) {
  constexpr std::string_view kMark = "://";
  constexpr std::string_view kHub = "hf";  // hf://org/name@revision has no host
  std::string shown;
  for (size_t mark = text.find(kMark); mark != std::string_view::npos; mark = text.find(kMark)) {
    const size_t begin = mark + kMark.size();
    shown += text.substr(0, begin);
    const bool is_hub = text.substr(0, mark).ends_with(kHub);
    text.remove_prefix(begin);
    if (!is_hub) text.remove_prefix(user_info_bytes(text));
  }
  return shown.append(text);
}

}  // namespace dspack
