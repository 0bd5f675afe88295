// Creates folders below an existing or new root so that they survive a loss of power.
// Threads: thread-safe. Lifetime: borrows the FileSystem. Errors: io.
#pragma once

#include <mutex>
#include <set>

#include "format/file_system.h"

namespace dspack::reshard {

/// Folder inside an output that exists only while a run is unfinished.
[[nodiscard]] inline format::Path work_folder(const format::Path& out) {
  return out / ".reshard";
}

class DurableFolders {
 public:
  explicit DurableFolders(format::FileSystem& files) : files_(files) {}
  /// Creates `folder` and what is missing above it, and syncs every folder that got a new name in it.
  [[nodiscard]] Result<void> make(const format::Path& folder);

 private:
  format::FileSystem& files_;
  std::mutex mutex_;
  std::set<format::Path> known_;  // guarded by mutex_
};

}  // namespace dspack::reshard
