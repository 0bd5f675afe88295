#include "runtime/text/unicode.h"

namespace dspack::runtime {

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = first_utf8_unit(text);
    if (unit.kind != Utf8Unit::Kind::character) return false;
    text.remove_prefix(unit.bytes);
  }
  return true;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Unit unit = first_utf8_unit(bytes);
    text += unit.kind == Utf8Unit::Kind::character ? bytes.substr(0, unit.bytes) : kReplacementCharacter;
    bytes.remove_prefix(unit.bytes);
  }
  return text;
}

void append_utf8(std::string& text, uint32_t codepoint) {
  const auto push = [&text](uint32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (codepoint < 0x80) {
    push(codepoint);
    return;
  }
  if (codepoint < 0x800) {
    push(0xC0 | (codepoint >> 6));
  } else {
    if (codepoint < 0x10000) {
      push(0xE0 | (codepoint >> 12));
    } else {
      push(0xF0 | (codepoint >> 18));
      push(0x80 | ((codepoint >> 12) & 0x3F));
    }
    push(0x80 | ((codepoint >> 6) & 0x3F));
  }
  push(0x80 | (codepoint & 0x3F));
}

size_t leading_white_space(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t bytes = first_utf8_unit(text.substr(end)).bytes;
    if (!is_white_space(decode_utf8_character(text.substr(end, bytes)))) break;
    end += bytes;
  }
  return end;
}

std::string_view last_character(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xC0u) != 0x80) break;
  }
  return text.substr(begin);
}

size_t trailing_white_space(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view last = last_character(text.substr(0, text.size() - bytes));
    if (!is_white_space(decode_utf8_character(last))) break;
    bytes += last.size();
  }
  return bytes;
}

}  // namespace dspack::runtime
