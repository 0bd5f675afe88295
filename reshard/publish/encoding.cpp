#include "reshard/publish/encoding.h"

#include <openssl/evp.h>

#include <array>
#include <limits>

#include <fmt/format.h>

#include "format/base/check.h"

namespace dspack::reshard {

struct GitBlobHash::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  Context() = default;
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

void GitBlobHash::Free::operator()(Context* context) const {
  delete context;
}

GitBlobHash::GitBlobHash(uint64_t size_bytes) : context_(new Context) {
  DSPACK_CHECK(context_->evp != nullptr && EVP_DigestInit_ex(context_->evp, EVP_sha1(), nullptr) == 1,
               "OpenSSL has no SHA-1");
  const std::string head = fmt::format("blob {}", size_bytes);
  update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with the zero at its end
}

void GitBlobHash::update(std::span<const std::byte> bytes) {
  DSPACK_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1, "OpenSSL cannot compute SHA-1");
}

std::string GitBlobHash::finish() {
  std::array<unsigned char, 20> digest{};
  DSPACK_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1, "OpenSSL cannot compute SHA-1");
  std::string hex;
  for (const unsigned char byte : digest)
    hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string base64(std::span<const std::byte> bytes) {
  DSPACK_CHECK(bytes.size() <= static_cast<size_t>(std::numeric_limits<int>::max()), "too much for base64 at once");
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL writes a zero behind it
  const int written =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(written));
  return text;
}

}  // namespace dspack::reshard
