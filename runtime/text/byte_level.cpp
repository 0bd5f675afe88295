#include "runtime/text/byte_level.h"

#include <array>
#include <cstdint>

#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kSpelledElsewhere = 256;  // bytes without a printable character are U+0100 onwards, in order
constexpr uint32_t kSpellings = 256 + 68;    // one past the highest spelling: 68 bytes are spelled elsewhere

constexpr bool spells_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint32_t, 256> kSpelling = [] {
  std::array<uint32_t, 256> spelling{};
  uint32_t next = kSpelledElsewhere;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    spelling[byte] = spells_itself(byte) ? byte : next++;
  }
  return spelling;
}();
static_assert(kSpelling[' '] == 0x120 && kSpelling[0xAD] == kSpellings - 1);

constexpr std::array<int, kSpellings> kByteOf = [] {
  std::array<int, kSpellings> byte_of{};
  byte_of.fill(-1);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    byte_of[kSpelling[byte]] = static_cast<int>(byte);
  }
  return byte_of;
}();

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string token;
  token.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes)
    append_utf8(token, kSpelling[static_cast<unsigned char>(byte)]);
  return token;
}

std::optional<std::string> unspell_bytes(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Unit unit = first_utf8_unit(token);
    if (unit.kind != Utf8Unit::Kind::character) return std::nullopt;
    const uint32_t codepoint = decode_utf8_character(token.substr(0, unit.bytes));
    if (codepoint >= kSpellings || kByteOf[codepoint] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(kByteOf[codepoint])));
    token.remove_prefix(unit.bytes);
  }
  return bytes;
}

}  // namespace dspack::runtime
