// Digests of a file's whole content that a server's headers declare, of any supported kind, and their check.
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

/// The best first: SHA-256 is computed anyway, the others only where there is nothing better. The last two prove
/// damage, not malice.
enum class HashKind { sha256, sha512, sha1, md5 };
[[nodiscard]] std::string_view to_string(HashKind kind);

struct ContentDigest {
  HashKind kind = HashKind::sha256;
  std::string hex;  // lower case
  std::string by;   // the header
};

/// What a header declares of the whole file, the best of it. nullopt: it is no such header, or says nothing of use.
[[nodiscard]] std::optional<ContentDigest> content_digest(std::string_view name, std::string_view value);
/// The better of what is known and what one more header says.
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

/// What git calls a file's content: the SHA-1 of "blob SIZE\0" and the content, which is still to be added. Source:
/// git-hash-object(1).
[[nodiscard]] ContentHash git_blob_hash(uint64_t size_bytes);

/// RFC 4648, section 4.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace dspack::format
