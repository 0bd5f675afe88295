#include "format/digest.h"

#include <openssl/evp.h>

#include "format/base/check.h"

namespace dspack::format {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

EVP_MD_CTX* as_context(void* context) {
  return static_cast<EVP_MD_CTX*>(context);
}

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

void Sha256::Free::operator()(void* context) const {
  EVP_MD_CTX_free(as_context(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  DSPACK_CHECK(EVP_DigestInit_ex(as_context(context_.get()), EVP_sha256(), nullptr) == 1, "SHA-256 is not available");
}

void Sha256::update(std::span<const std::byte> bytes) {
  DSPACK_CHECK(EVP_DigestUpdate(as_context(context_.get()), bytes.data(), bytes.size()) == 1, "SHA-256 failed");
}

Digest Sha256::finish() {
  Digest digest;
  EVP_MD_CTX* context = as_context(context_.get());
  DSPACK_CHECK(EVP_DigestFinal_ex(context, digest.bytes.data(), nullptr) == 1, "SHA-256 failed");
  DSPACK_CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1, "SHA-256 is not available");
  return digest;
}

Digest sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return hash.finish();
}

}  // namespace dspack::format
