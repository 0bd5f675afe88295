#include "format/http/content_digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include <fmt/format.h>

#include "format/base/check.h"
#include "format/base/result.h"
#include "format/http/headers.h"

namespace dspack::format {
namespace {

struct Algorithm {
  HashKind kind;
  std::string_view name;        // for people
  std::string_view dictionary;  // key in Repr-Digest and Digest
  std::string_view suffix;      // follows X-Checksum- or x-amz-checksum-
  size_t bytes;
  const EVP_MD* (*function)();
};

constexpr std::array<Algorithm, 4> kAlgorithms{{
    {HashKind::sha256, "SHA-256", "sha-256", "sha256", 32, &EVP_sha256},
    {HashKind::sha512, "SHA-512", "sha-512", "sha512", 64, &EVP_sha512},
    {HashKind::sha1, "SHA-1", "sha", "sha1", 20, &EVP_sha1},
    {HashKind::md5, "MD5", "md5", "md5", 16, &EVP_md5},
}};

const Algorithm& algorithm(HashKind kind) {
  return *std::ranges::find(kAlgorithms, kind, &Algorithm::kind);
}

std::string hex_of(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4U];
    hex += kDigits[byte & 15U];
  }
  return hex;
}

/// nullopt unless it encodes exactly `bytes` bytes: with "-5" appended, S3's checksum is one over the checksums of
/// parts.
std::optional<std::string> hex_of_base64(std::string_view text, size_t bytes) {
  const size_t padded = (bytes + 2) / 3 * 4;
  if (text.size() != padded) return std::nullopt;
  std::array<unsigned char, 96> decoded{};
  const int got = EVP_DecodeBlock(decoded.data(), reinterpret_cast<const unsigned char*>(text.data()),
                                  static_cast<int>(text.size()));
  const auto padding = static_cast<size_t>(std::ranges::count(text, '='));
  if (got < 0 || static_cast<size_t>(got) != bytes + padding) return std::nullopt;
  return hex_of(std::span(decoded).first(bytes));
}

std::optional<std::string> hex_of_hex(std::string_view text, size_t bytes) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool is_hex = std::ranges::all_of(lower, [](unsigned char c) { return std::isxdigit(c) != 0; });
  return is_hex && lower.size() == 2 * bytes ? std::optional(lower) : std::nullopt;
}

/// `sha-256=:...:, sha-512=:...:` of Repr-Digest; `SHA-256=...,MD5=...` of Digest and x-goog-hash.
std::optional<ContentDigest> best_of_dictionary(std::string_view name, std::string_view value) {
  std::optional<ContentDigest> best;
  while (!value.empty()) {
    const size_t comma = std::min(value.find(','), value.size());
    const std::string_view entry = trim_header(value.substr(0, comma));
    value.remove_prefix(std::min(comma + 1, value.size()));
    const size_t equals = std::min(entry.find('='), entry.size());
    std::string_view text = entry.substr(std::min(equals + 1, entry.size()));
    if (text.size() >= 2 && text.starts_with(':') && text.ends_with(':')) text = text.substr(1, text.size() - 2);
    for (const Algorithm& one : kAlgorithms) {
      if (!equal_ignoring_case(entry.substr(0, equals), one.dictionary)) continue;
      if (auto hex = hex_of_base64(text, one.bytes))
        keep_better(best, ContentDigest{one.kind, *hex, std::string(name)});
    }
  }
  return best;
}

}  // namespace

std::string_view to_string(HashKind kind) {
  return algorithm(kind).name;
}

void keep_better(std::optional<ContentDigest>& known, std::optional<ContentDigest> found) {
  if (found && (!known || found->kind < known->kind)) known = std::move(found);
}

std::optional<ContentDigest> content_digest(std::string_view name, std::string_view value) {
  for (const std::string_view dictionary : {"repr-digest", "digest", "x-goog-hash"}) {
    if (equal_ignoring_case(name, dictionary)) return best_of_dictionary(name, value);
  }
  constexpr std::string_view kPlain = "x-checksum-";
  constexpr std::string_view kAmazon = "x-amz-checksum-";
  for (const Algorithm& one : kAlgorithms) {
    const auto is = [&](std::string_view prefix) {
      return equal_ignoring_case(name.substr(0, prefix.size()), prefix) &&
             equal_ignoring_case(name.substr(std::min(prefix.size(), name.size())), one.suffix);
    };
    const bool is_md5 = one.kind == HashKind::md5 && (equal_ignoring_case(name, "content-md5") ||
                                                      equal_ignoring_case(name, "x-ms-blob-content-md5"));
    std::optional<std::string> hex;
    if (is(kPlain)) hex = hex_of_hex(value, one.bytes);
    if (is(kAmazon) || is_md5) hex = hex_of_base64(value, one.bytes);
    if (hex) return ContentDigest{one.kind, *hex, std::string(name)};
  }
  return std::nullopt;
}

void ContentHash::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

ContentHash::ContentHash(HashKind kind) : context_(allocated(EVP_MD_CTX_new())) {
  DSPACK_CHECK(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_.get()), algorithm(kind).function(), nullptr) == 1,
               "the digest is not available");
}

void ContentHash::update(std::span<const std::byte> bytes) {
  DSPACK_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size()) == 1,
               "the digest failed");
}

std::string ContentHash::finish_hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  DSPACK_CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), &size) == 1,
               "the digest failed");
  return hex_of(std::span(bytes).first(size));
}

ContentHash git_blob_hash(uint64_t size_bytes) {
  const std::string head = fmt::format("blob {}", size_bytes);
  ContentHash hash(HashKind::sha1);
  hash.update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // includes the terminating zero
  return hash;
}

std::string base64(std::span<const std::byte> bytes) {
  DSPACK_CHECK(bytes.size() <= static_cast<size_t>(std::numeric_limits<int>::max()), "too much for base64 at once");
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL appends a zero
  const int written =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(written));
  return text;
}

}  // namespace dspack::format
