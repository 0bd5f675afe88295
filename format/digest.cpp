#include "format/digest.h"

// OpenSSL's low-level interface: only it exposes a digest's state, which sha256_lanes needs.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <charconv>

#include "format/base/check.h"
#include "format/sha256_lanes.h"

namespace dspack::format {
namespace {

constexpr size_t kSha256BlockBytes = SHA256_CBLOCK;

constexpr char kHexDigits[] = "0123456789abcdef";

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

void append_hex(std::string& hex, uint8_t byte) {
  hex.push_back(kHexDigits[byte >> 4]);
  hex.push_back(kHexDigits[byte & 0xf]);
}

std::optional<std::string> parse_hex(std::string_view hex) {
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes(hex.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = hex_value(hex[2 * i]);
    const int low = hex_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes[i] = static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace

std::string to_hex(const Digest& digest) {
  std::string hex;
  hex.reserve(2 * digest.bytes.size());
  for (const uint8_t byte : digest.bytes)
    append_hex(hex, byte);
  return hex;
}

std::string to_text(const Sha256State& state) {
  std::string text;
  for (const uint32_t word : state.words) {
    for (int shift = 24; shift >= 0; shift -= 8)
      append_hex(text, static_cast<uint8_t>(word >> shift));
  }
  text += ' ' + std::to_string(state.bytes) + ' ';
  for (const char byte : state.rest)
    append_hex(text, static_cast<uint8_t>(byte));
  return text;
}

std::optional<Sha256State> parse_sha256_state(std::string_view text) {
  const size_t first = text.find(' ');
  const size_t second = first == std::string_view::npos ? first : text.find(' ', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto words = parse_hex(text.substr(0, first));
  const auto rest = parse_hex(text.substr(second + 1));
  const std::string_view bytes = text.substr(first + 1, second - first - 1);
  Sha256State state;
  const auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), state.bytes);
  if (error != std::errc() || end != bytes.data() + bytes.size()) return std::nullopt;
  if (!words || words->size() != 4 * state.words.size() || !rest || rest->size() != state.bytes % kSha256BlockBytes)
    return std::nullopt;
  for (size_t i = 0; i < words->size(); ++i)
    state.words[i / 4] = state.words[i / 4] << 8 | static_cast<uint8_t>((*words)[i]);
  state.rest = *rest;
  return state;
}

std::optional<Digest> parse_digest(std::string_view hex) {
  Digest digest;
  const auto bytes = parse_hex(hex);
  if (!bytes || bytes->size() != digest.bytes.size()) return std::nullopt;
  std::copy(bytes->begin(), bytes->end(), digest.bytes.begin());
  return digest;
}

struct Sha256::Context {
  SHA256_CTX openssl;

  void start() { DSPACK_CHECK(SHA256_Init(&openssl) == 1, "SHA-256 is not available"); }
  void update(std::span<const std::byte> bytes) {
    DSPACK_CHECK(SHA256_Update(&openssl, bytes.data(), bytes.size()) == 1, "SHA-256 failed");
  }
  /// Bytes missing to a whole block.
  [[nodiscard]] size_t missing() const { return (kSha256BlockBytes - openssl.num) % kSha256BlockBytes; }
  [[nodiscard]] uint64_t bytes() const { return (uint64_t{openssl.Nh} << 32 | openssl.Nl) / 8; }
  void set_bytes(uint64_t bytes) {
    openssl.Nh = static_cast<SHA_LONG>(bytes * 8 >> 32);
    openssl.Nl = static_cast<SHA_LONG>(bytes * 8);
  }
  /// Accounts for blocks that were hashed without OpenSSL.
  void count_blocks(size_t blocks) { set_bytes(bytes() + uint64_t{blocks} * kSha256BlockBytes); }
};

void Sha256::Free::operator()(Context* context) const {
  delete context;
}

Sha256::Sha256() : context_(new Context) {
  context_->start();
}

Sha256::Sha256(const Sha256State& state) : Sha256() {
  std::copy(state.words.begin(), state.words.end(), context_->openssl.h);
  context_->set_bytes(state.bytes - state.rest.size());
  context_->update(std::as_bytes(std::span(state.rest)));
}

Sha256State Sha256::state() const {
  const SHA256_CTX& openssl = context_->openssl;
  Sha256State state{.words = {}, .bytes = context_->bytes(), .rest = {}};
  std::copy(std::begin(openssl.h), std::end(openssl.h), state.words.begin());
  state.rest.assign(reinterpret_cast<const char*>(openssl.data), openssl.num);
  return state;
}

void Sha256::update(std::span<const std::byte> bytes) {
  context_->update(bytes);
}

Digest Sha256::finish() {
  Digest digest;
  DSPACK_CHECK(SHA256_Final(digest.bytes.data(), &context_->openssl) == 1, "SHA-256 failed");
  context_->start();
  return digest;
}

void update_together(std::span<Sha256* const> hashes, std::span<const std::byte> bytes) {
  const bool worth_it = hashes.size() > 1 && hashes.size() <= kSha256Lanes && bytes.size() >= 2 * kSha256BlockBytes;
  if (!worth_it || !has_sha256_lanes()) {
    for (Sha256* hash : hashes)
      hash->update(bytes);
    return;
  }
  // Each hash first fills its partial block; the blocks that all have left are then hashed side by side.
  std::array<Sha256Lane, kSha256Lanes> lanes;
  std::array<size_t, kSha256Lanes> at{};
  size_t blocks = bytes.size() / kSha256BlockBytes;
  for (size_t i = 0; i < hashes.size(); ++i) {
    Sha256::Context& context = *hashes[i]->context_;
    at[i] = context.missing();
    context.update(bytes.first(at[i]));
    lanes[i] = {context.openssl.h, reinterpret_cast<const uint8_t*>(bytes.data() + at[i])};
    blocks = std::min(blocks, (bytes.size() - at[i]) / kSha256BlockBytes);
  }
  sha256_blocks(std::span(lanes).first(hashes.size()), blocks);
  for (size_t i = 0; i < hashes.size(); ++i) {
    hashes[i]->context_->count_blocks(blocks);
    hashes[i]->update(bytes.subspan(at[i] + blocks * kSha256BlockBytes));
  }
}

Digest sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return hash.finish();
}

}  // namespace dspack::format
