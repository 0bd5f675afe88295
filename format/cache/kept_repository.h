// What a cache folder has of a distant repository, as a repository that asks nobody: its small files, and the headers
// of its shards. Enough for the catalogue; weights behind a header are not here (kept_weights.h).
// Threads: thread-safe. Lifetime: borrows the FileSystem and the state. Errors: not_found (not kept, or not as it was).
#pragma once

#include <string>

#include "format/cache/cache_journal.h"
#include "format/source/repository.h"

namespace dspack::format {

class KeptRepository final : public Repository {
 public:
  KeptRepository(FileSystem& files, Path root, const CacheState& state)
      : files_(files), root_(std::move(root)), state_(state) {}

  [[nodiscard]] RepositoryKind kind() const override { return RepositoryKind::http; }
  [[nodiscard]] std::string description() const override { return root_.string(); }
  [[nodiscard]] std::string locate(std::string_view path) const override { return (root_ / path).string(); }
  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override;
  [[nodiscard]] Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                              std::stop_token stop) override;
  [[nodiscard]] Result<std::optional<std::vector<ListedFile>>> list(std::stop_token /*stop*/) override {
    return std::optional<std::vector<ListedFile>>();
  }
  [[nodiscard]] Result<std::optional<DeclaredFile>> declared(std::string_view /*path*/,
                                                             std::stop_token /*stop*/) override {
    return std::optional<DeclaredFile>();
  }

 private:
  FileSystem& files_;
  Path root_;
  const CacheState& state_;
};

/// A small file, if its bytes are those that the journal speaks of. Errors: not_found (it is gone), corrupt, io.
[[nodiscard]] Result<std::string> read_kept_text(FileSystem& files, const Path& path, const KeptText& kept);

}  // namespace dspack::format
