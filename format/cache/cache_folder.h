// The local cache folder of a remote repository: its small files, its catalogue, and a journal of what is present.
// weight_cache.h keeps the weights. docs/format.md specifies the folder.
// Threads: thread-safe. Lifetime: borrows the FileSystem; holds the folder's lock until it is destroyed. Errors:
// conflict (another process uses the folder, it caches another origin, it holds something else), corrupt (the journal
// is damaged), io, budget (no space).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "format/cache/cache_journal.h"
#include "format/file_system.h"
#include "format/record_log.h"

namespace dspack::format {

/// The folder for the cache's working state.
[[nodiscard]] inline Path cache_work_folder(const Path& root) {
  return root / ".dspack-cache";
}
[[nodiscard]] inline Path cache_lock_path(const Path& root) {
  return cache_work_folder(root) / "lock";
}
[[nodiscard]] inline Path cache_journal_path(const Path& root) {
  return cache_work_folder(root) / "journal";
}
/// Path of the copy of a small file of the origin.
[[nodiscard]] inline Path cache_text_path(const Path& root, std::string_view path) {
  return cache_work_folder(root) / "origin" / path;
}
/// Path of the copy of an ordinary shard's header.
[[nodiscard]] inline Path cache_header_path(const Path& root, std::string_view path) {
  return cache_work_folder(root) / "headers" / path;
}
/// Path at which a weight file is written until it is complete.
[[nodiscard]] inline Path cache_part_path(const Path& root, std::string_view path) {
  return cache_work_folder(root) / "part" / path;
}

/// Removes the working state of a cache that has become a packed repository: only files and folders with the names that
/// caches use. The folder itself stays if anything else is in it.
[[nodiscard]] Result<void> remove_cache_work(FileSystem& files, const Path& root);

class CacheFolder {
 public:
  /// `origin`: the address of the cached repository, without secrets. Empty: any origin, but the cache must exist.
  [[nodiscard]] static Result<std::unique_ptr<CacheFolder>> open(FileSystem& files, Path root, std::string origin);

  [[nodiscard]] const Path& root() const { return root_; }
  [[nodiscard]] const std::string& origin() const { return origin_; }
  [[nodiscard]] FileSystem& files() { return files_; }
  [[nodiscard]] DurableFolders& folders() { return folders_; }
  [[nodiscard]] RecordLog& journal() { return *journal_; }
  /// The weights that the journal listed when it was opened; later changes are not included.
  [[nodiscard]] const CacheState& state() const { return state_; }
  /// Path at which a weight file is written until it is complete.
  [[nodiscard]] Path part_path(const std::string& path) const { return cache_part_path(root_, path); }

  /// A small file of the origin; nullopt if it is not kept, or its bytes have changed.
  [[nodiscard]] std::optional<std::string> text(std::string_view path);
  [[nodiscard]] bool is_absent(std::string_view path);
  [[nodiscard]] Result<void> keep_text(std::string_view path, std::string_view text);
  [[nodiscard]] Result<void> keep_absent(std::string_view path);

  /// An ordinary shard's size and version, and its first bytes: length of the JSON, and JSON.
  struct Header {
    uint64_t file_bytes = 0;
    std::string version;
    std::string text;
  };
  [[nodiscard]] std::optional<Header> header(std::string_view path);
  [[nodiscard]] Result<void> keep_header(std::string_view path, const Header& header);

 private:
  // Access::owner: copies of a private repository's files must be readable only by the user who fetched them.
  CacheFolder(FileSystem& files, Path root)
      : files_(files), root_(std::move(root)), folders_(files, root_, Access::owner) {}
  Result<void> load(std::string origin);
  [[nodiscard]] std::optional<std::string> checked_text(const Path& path, const KeptText& kept);
  Result<void> write(const Path& path, std::string_view text);

  FileSystem& files_;
  Path root_;
  std::string origin_;
  DurableFolders folders_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<RecordLog> journal_;
  std::mutex mutex_;
  CacheState state_;  // texts, absent and headers are guarded by mutex_; the rest stays as loaded
};

}  // namespace dspack::format
