// How the Hub names and carries small files: git's blob name, and base64.
// Threads: base64 is a pure function; a GitBlobHash belongs to one thread at a time. Source: git-hash-object(1)
// ("blob SIZE\0" and the content), RFC 4648 section 4; both computed by OpenSSL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace dspack::reshard {

/// The SHA-1 under which git stores a file's content.
class GitBlobHash {
 public:
  explicit GitBlobHash(uint64_t size_bytes);
  void update(std::span<const std::byte> bytes);
  /// 40 hex digits; once, after `size_bytes` bytes.
  [[nodiscard]] std::string finish();

 private:
  struct Context;
  struct Free {
    void operator()(Context* context) const;
  };
  std::unique_ptr<Context, Free> context_;
};

[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace dspack::reshard
