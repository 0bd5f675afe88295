#include "runtime/text/vocabulary.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdint>

#include "format/base/foreign_text.h"
#include "runtime/text/json.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kIdSlack = 65'536;  // real vocabularies have holes of at most a few hundred ids

}  // namespace

Vocabulary::Vocabulary(uint64_t expected_tokens)
    : id_limit_(std::min<uint64_t>(expected_tokens, UINT32_MAX / 4) * 2 + kIdSlack) {}

/// Reserves the entry of `id` for a new token.
Result<uint32_t> Vocabulary::claim(uint64_t id, std::string_view token) {
  if (id >= id_limit_) {
    return Error{ErrorKind::invalid, fmt::format("token {} has id {}, too far beyond the number of tokens (limit {})",
                                                 quote(token), id, id_limit_)};
  }
  const auto small_id = static_cast<uint32_t>(id);
  if (small_id >= entries_.size()) entries_.resize(small_id + 1);
  Entry& entry = entries_[small_id];
  if (entry.present) {
    return Error{ErrorKind::invalid,
                 fmt::format("id {} belongs to two tokens, {} and {}", id, quote(entry.token), quote(token))};
  }
  entry.token = token;
  entry.present = true;
  return small_id;
}

Result<void> Vocabulary::add(uint64_t id, std::string_view token) {
  if (const auto known = ids_.find(token); known != ids_.end()) {
    if (known->second == id) return {};
    return Error{ErrorKind::invalid, fmt::format("token {} has two ids, {} and {}", quote(token), known->second, id)};
  }
  TRY_ASSIGN(const uint32_t small_id, claim(id, token));
  // As in Hugging Face's ByteLevel decoder: a token with a character that represents no byte is plain text.
  entries_[small_id].bytes = unspell_bytes(token).value_or(std::string(token));
  ids_.emplace(token, small_id);
  return {};
}

Result<void> Vocabulary::add_text(uint64_t id, std::string_view token) {
  TRY_ASSIGN(const uint32_t small_id, claim(id, token));
  entries_[small_id].bytes = token;
  ids_.insert_or_assign(std::string(token), small_id);
  return {};
}

std::optional<uint32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional<uint32_t>(found->second);
}

std::optional<std::string_view> Vocabulary::token(uint32_t id) const {
  if (id >= entries_.size() || !entries_[id].present) return std::nullopt;
  return entries_[id].token;
}

std::string_view Vocabulary::bytes(uint32_t id) const {
  return id < entries_.size() ? std::string_view(entries_[id].bytes) : std::string_view();
}

namespace {

constexpr uint32_t kSpelledElsewhere = 256;  // first spelling of bytes without a printable character, in order
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
