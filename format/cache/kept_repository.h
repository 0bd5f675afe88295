// A cache folder as a repository that sends no requests: its small files and shard headers. Enough for the catalogue;
// weights are not readable through it (kept_weights.h).
// Threads: thread-safe. Lifetime: borrows the FileSystem and the state. Errors: not_found (not kept), corrupt (changed
// since).
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

/// A small file whose bytes match the journal's digest. Errors: not_found (the file is gone), corrupt, io.
[[nodiscard]] Result<std::string> read_kept_text(FileSystem& files, const Path& path, const KeptText& kept);

}  // namespace dspack::format
