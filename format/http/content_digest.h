// Digests of a file's whole content, of any supported kind, that a server's headers declare, and their check.
// Threads: plain values; a ContentHash belongs to one thread at a time. Errors: none: malformed headers are ignored.
// Source: RFC 9530 (Repr-Digest), RFC 3230 (Digest), RFC 1864 (Content-MD5), and the headers of Artifactory
// (X-Checksum-*), S3 (x-amz-checksum-*), Google (x-goog-hash) and Azure (x-ms-blob-content-md5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dspack::format {

/// Best first: SHA-256 is computed anyway, the others only if nothing better is declared. The last two detect damage,
/// not malice.
enum class HashKind { sha256, sha512, sha1, md5 };
[[nodiscard]] std::string_view to_string(HashKind kind);

struct ContentDigest {
  HashKind kind = HashKind::sha256;
  std::string hex;  // lower case
  std::string by;   // name of the header
};

/// The best digest of the whole file that a header declares. nullopt: not such a header, or no supported digest in it.
[[nodiscard]] std::optional<ContentDigest> content_digest(std::string_view name, std::string_view value);
/// Replaces `known` by `found` if that is better.
void keep_better(std::optional<ContentDigest>& known, std::optional<ContentDigest> found);

class ContentHash {
 public:
  explicit ContentHash(HashKind kind);
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::string finish_hex();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

/// The hash of a file's content as a git blob: SHA-1 of "blob SIZE\0" and the content, which the caller still has to
/// add. Source: git-hash-object(1).
[[nodiscard]] ContentHash git_blob_hash(uint64_t size_bytes);

/// RFC 4648, section 4.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace dspack::format
