// Folders that survive a loss of power.
// Threads: thread-safe. Lifetime: borrows the FileSystem. Errors: io, budget, invalid (a symbolic link below the
// output folder where one of its folders belongs).
#pragma once

#include <mutex>
#include <set>

#include "format/file_system.h"

namespace dspack::format {

/// Who may look into a folder: whom the user's settings (umask) allow, or the owner alone.
enum class FolderAccess { usual, owner };

/// Creates an output folder and those below it so that they survive a loss of power, whoever has created them.
class DurableFolders {
 public:
  /// `access`: of the folders that it creates.
  DurableFolders(FileSystem& files, Path out, FolderAccess access = FolderAccess::usual)
      : files_(files), out_(out.has_filename() ? std::move(out) : out.parent_path()), access_(access) {}
  [[nodiscard]] Result<void> make(const Path& folder);

 private:
  [[nodiscard]] Result<void> check_links(const Path& folder);
  [[nodiscard]] Result<void> sync_name(const Path& folder);

  FileSystem& files_;
  Path out_;
  FolderAccess access_;
  std::mutex mutex_;
  std::set<Path> known_;     // synced by this run; guarded by mutex_
  std::set<Path> unlinked_;  // below out_, looked at and no links; guarded by mutex_
};

/// Whether `inner` is `outer` or lies below it. Both canonical, or the one made from the other.
[[nodiscard]] bool is_within(const Path& inner, const Path& outer);

}  // namespace dspack::format
