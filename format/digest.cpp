#include "format/digest.h"

// The low-level interface: only there can a digest's state be reached, which sha256_lanes needs.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>

#include "format/base/check.h"
#include "format/sha256_lanes.h"

namespace dspack::format {
namespace {

constexpr size_t kBlockBytes = SHA256_CBLOCK;

constexpr char kHexDigits[] = "0123456789abcdef";

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string to_hex(const Digest& digest) {
  std::string hex;
  hex.reserve(2 * digest.bytes.size());
  for (const uint8_t byte : digest.bytes) {
    hex.push_back(kHexDigits[byte >> 4]);
    hex.push_back(kHexDigits[byte & 0xf]);
  }
  return hex;
}

std::optional<Digest> parse_digest(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = hex_value(hex[2 * i]);
    const int low = hex_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return digest;
}

struct Sha256::Context {
  SHA256_CTX openssl;

  void start() { DSPACK_CHECK(SHA256_Init(&openssl) == 1, "SHA-256 is not available"); }
  void update(std::span<const std::byte> bytes) {
    DSPACK_CHECK(SHA256_Update(&openssl, bytes.data(), bytes.size()) == 1, "SHA-256 failed");
  }
  /// Bytes that are missing to a whole block.
  [[nodiscard]] size_t missing() const { return (kBlockBytes - openssl.num) % kBlockBytes; }
  /// Accounts for blocks that were taken in past OpenSSL.
  void count_blocks(size_t blocks) {
    const uint64_t bits = (uint64_t{openssl.Nh} << 32 | openssl.Nl) + uint64_t{blocks} * kBlockBytes * 8;
    openssl.Nh = static_cast<SHA_LONG>(bits >> 32);
    openssl.Nl = static_cast<SHA_LONG>(bits);
  }
};

void Sha256::Free::operator()(Context* context) const {
  delete context;
}

Sha256::Sha256() : context_(new Context) {
  context_->start();
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
  const bool worth_it = hashes.size() > 1 && hashes.size() <= kSha256Lanes && bytes.size() >= 2 * kBlockBytes;
  if (!worth_it || !has_sha256_lanes()) {
    for (Sha256* hash : hashes)
      hash->update(bytes);
    return;
  }
  // Each first fills the block that it has begun; the blocks that all of them have then go side by side.
  std::array<Sha256Lane, kSha256Lanes> lanes;
  std::array<size_t, kSha256Lanes> at{};
  size_t blocks = bytes.size() / kBlockBytes;
  for (size_t i = 0; i < hashes.size(); ++i) {
    Sha256::Context& context = *hashes[i]->context_;
    at[i] = context.missing();
    context.update(bytes.first(at[i]));
    lanes[i] = {context.openssl.h, reinterpret_cast<const uint8_t*>(bytes.data() + at[i])};
    blocks = std::min(blocks, (bytes.size() - at[i]) / kBlockBytes);
  }
  sha256_blocks(std::span(lanes).first(hashes.size()), blocks);
  for (size_t i = 0; i < hashes.size(); ++i) {
    hashes[i]->context_->count_blocks(blocks);
    hashes[i]->update(bytes.subspan(at[i] + blocks * kBlockBytes));
  }
}

Digest sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return hash.finish();
}

}  // namespace dspack::format
