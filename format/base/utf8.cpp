#include "format/base/utf8.h"

namespace dspack {
namespace {

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

uint32_t decode_utf8_character(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (lead < 0x80) return lead;
  uint32_t value = lead & (0x7Fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) {
    value = (value << 6) | (static_cast<unsigned char>(character[i]) & 0x3Fu);
  }
  return value;
}

}  // namespace dspack
