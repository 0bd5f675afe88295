// The folder that a run fills: apart from what it is filled from, fit to be filled, held by one run at a time.
// Threads: thread-safe; DurableFolders too. Lifetime: DurableFolders borrows the FileSystem.
// Errors: invalid (folders inside each other), conflict (something else is there, another run holds it), budget (too
// little disk), io.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "format/file_system.h"
#include "format/source/repository.h"

namespace dspack::reshard {

/// Folder inside the output that exists only while a run is unfinished.
[[nodiscard]] inline format::Path work_folder(const format::Path& out) {
  return out / ".reshard";
}

/// Creates the output folder and those below it so that they survive a loss of power, whoever has created them.
class DurableFolders {
 public:
  DurableFolders(format::FileSystem& files, format::Path out) : files_(files), out_(std::move(out)) {}
  [[nodiscard]] Result<void> make(const format::Path& folder);

 private:
  [[nodiscard]] Result<void> sync_name(const format::Path& folder);

  format::FileSystem& files_;
  format::Path out_;
  std::mutex mutex_;
  std::set<format::Path> known_;  // synced by this run; guarded by mutex_
};

/// What a run does in its output folder; each kind knows its own unfinished work again by a file in the work folder.
enum class WorkKind {
  repack,  // .reshard/journal
  unpack,  // .reshard/unpack
};
[[nodiscard]] format::Path work_mark(const format::Path& out, WorkKind kind);

/// Refuses an output inside the source, which the next run would take for part of it, and a source inside the output.
[[nodiscard]] Result<void> check_apart(const format::Repository& source, const format::Path& out);

/// A folder that holds anything but unfinished work of this kind is not ours to fill.
[[nodiscard]] Result<void> check_target(const format::Path& out, WorkKind kind, format::FileSystem& files);

/// Marks the folder as work in progress and takes its lock.
[[nodiscard]] Result<std::unique_ptr<format::FileLock>> lock_work_folder(const format::Path& out,
                                                                         format::FileSystem& files);

/// Whether `need_bytes` more bytes fit on the disk that holds `out`.
[[nodiscard]] Result<void> check_disk(uint64_t need_bytes, const format::Path& out, format::FileSystem& files);

}  // namespace dspack::reshard
