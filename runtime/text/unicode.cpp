#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

// Assigned by Unicode 15.0, 15.1 and 16.0 (UnicodeData.txt), by major general category.
constexpr CodepointRange kLetters[] = {
    {0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3}, {0x10d4a, 0x10d65},
    {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x1123f, 0x11240}, {0x11380, 0x11389}, {0x1138b, 0x1138b},
    {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7}, {0x113d1, 0x113d1}, {0x113d3, 0x113d3},
    {0x11bc0, 0x11be0}, {0x11f02, 0x11f02}, {0x11f04, 0x11f10}, {0x11f12, 0x11f33}, {0x1342f, 0x1342f},
    {0x13441, 0x13446}, {0x13460, 0x143fa}, {0x16100, 0x1611d}, {0x16d40, 0x16d6c}, {0x18cff, 0x18cff},
    {0x1b132, 0x1b132}, {0x1b155, 0x1b155}, {0x1df25, 0x1df2a}, {0x1e030, 0x1e06d}, {0x1e4d0, 0x1e4eb},
    {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0}, {0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af}};
constexpr CodepointRange kMarks[] = {{0x897, 0x897},     {0xcf3, 0xcf3},     {0xece, 0xece},     {0x10d69, 0x10d6d},
                                     {0x10efc, 0x10eff}, {0x11241, 0x11241}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2},
                                     {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2},
                                     {0x113e1, 0x113e2}, {0x11f00, 0x11f01}, {0x11f03, 0x11f03}, {0x11f34, 0x11f3a},
                                     {0x11f3e, 0x11f42}, {0x11f5a, 0x11f5a}, {0x13440, 0x13440}, {0x13447, 0x13455},
                                     {0x1611e, 0x1612f}, {0x1e08f, 0x1e08f}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}};
constexpr CodepointRange kNumbers[] = {{0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x11f50, 0x11f59},
                                       {0x16130, 0x16139}, {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1d2c0, 0x1d2d3},
                                       {0x1e4f0, 0x1e4f9}, {0x1e5f1, 0x1e5fa}};
constexpr CodepointRange kPunctuation[] = {
    {0x1b4e, 0x1b4f},   {0x1b7f, 0x1b7f},   {0x10d6e, 0x10d6e}, {0x113d4, 0x113d5}, {0x113d7, 0x113d8},
    {0x11b00, 0x11b09}, {0x11be1, 0x11be1}, {0x11f43, 0x11f4f}, {0x16d6d, 0x16d6f}, {0x1e5ff, 0x1e5ff}};
constexpr CodepointRange kSymbols[] = {
    {0x2427, 0x2429},   {0x2ffc, 0x2fff},   {0x31e4, 0x31e5},   {0x31ef, 0x31ef},   {0x10d8e, 0x10d8f},
    {0x1cc00, 0x1ccef}, {0x1cd00, 0x1ceb3}, {0x1f6dc, 0x1f6dc}, {0x1f774, 0x1f776}, {0x1f77b, 0x1f77f},
    {0x1f7d9, 0x1f7d9}, {0x1f8b2, 0x1f8bb}, {0x1f8c0, 0x1f8c1}, {0x1fa75, 0x1fa77}, {0x1fa87, 0x1fa89},
    {0x1fa8f, 0x1fa8f}, {0x1faad, 0x1faaf}, {0x1fabb, 0x1fabf}, {0x1fac6, 0x1fac6}, {0x1face, 0x1facf},
    {0x1fada, 0x1fadc}, {0x1fadf, 0x1fadf}, {0x1fae8, 0x1fae9}, {0x1faf7, 0x1faf8}, {0x1fbcb, 0x1fbef}};

/// Length of the character that a first byte announces; 0 if no character starts with it.
size_t announced_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// Whether `byte` may stand at `index` (1 based on the first byte) of a character that starts with `lead`: the second
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

uint32_t decode_utf8_character(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (lead < 0x80) return lead;
  uint32_t value = lead & (0x7Fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) {
    value = (value << 6) | (static_cast<unsigned char>(character[i]) & 0x3Fu);
  }
  return value;
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

std::span<const CodepointRange> recent_additions(char category) {
  switch (category) {
    case 'L': return kLetters;
    case 'M': return kMarks;
    case 'N': return kNumbers;
    case 'P': return kPunctuation;
    case 'S': return kSymbols;
    default: return {};
  }
}

}  // namespace dspack::runtime
