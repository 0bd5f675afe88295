// The output folder of a run: separate from the source, empty or resumable, locked by one run at a time.
// Threads: thread-safe.
// Errors: invalid (folders inside each other), conflict (the folder holds something else, another run has locked it),
// budget (too little disk space, too few free inodes), io.
#pragma once

#include <memory>
#include <string>

#include "format/file_system.h"
#include "format/source/repository.h"

namespace dspack::reshard {

/// Folder inside the output that exists only while a run is unfinished.
[[nodiscard]] inline format::Path work_folder(const format::Path& out) {
  return out / ".reshard";
}
/// Name of the file in it that a run locks.
inline constexpr char kLockName[] = "lock";
/// Files that do not have all their bytes or their final form yet.
[[nodiscard]] inline format::Path part_folder(const format::Path& out) {
  return work_folder(out) / "part";
}

/// Complete files of an unpacking: they get their final names when all are complete.
[[nodiscard]] inline format::Path done_folder(const format::Path& out) {
  return work_folder(out) / "done";
}

using format::DurableFolders;

/// The kinds of work in an output folder, each recognised by its own file in the work folder.
enum class WorkKind {
  repack,  // .reshard/journal
  parts,   // .reshard/parts/, for a repack in parts
  unpack,  // .reshard/unpack
};
[[nodiscard]] format::Path work_mark(const format::Path& out, WorkKind kind);

/// Refuses an output inside the source, which the next run would treat as part of the source, and a source inside the
/// output.
[[nodiscard]] Result<void> check_apart(const format::Repository& source, const format::Path& out);

/// Refuses a folder that holds anything but unfinished work of this kind. A work folder is recognised by this kind's
/// mark, or if neither it nor the output folder holds anything but what a run starts with. Parts that `reshard seal` is
/// joining are beside its journal.
[[nodiscard]] Result<void> check_target(const format::Path& out, WorkKind kind, format::FileSystem& files);

/// Marks the folder as work in progress and locks it: exclusively for a whole run, shared among parts.
[[nodiscard]] Result<std::unique_ptr<format::FileLock>> lock_work_folder(const format::Path& out, format::LockKind kind,
                                                                         format::FileSystem& files);

/// Removes the work folder of a finished run. Deletes only names that runs use: each mark after the data that it
/// identifies, the lock last. If anything else is in the folder, both stay.
[[nodiscard]] Result<void> remove_work_folder(const format::Path& out, format::FileSystem& files);

/// Errors: budget, if `need_bytes` more bytes do not fit into `free_bytes` of the disk that holds `out`.
[[nodiscard]] Result<void> check_disk(uint64_t need_bytes, uint64_t free_bytes, const format::Path& out);
/// The same for the space that is free now.
[[nodiscard]] Result<void> check_disk(uint64_t need_bytes, const format::Path& out, format::FileSystem& files);

/// Errors: budget, if `need_files` more files and folders cannot be created: a disk may have free bytes but no inodes.
[[nodiscard]] Result<void> check_free_files(uint64_t need_files, const format::Path& out, format::FileSystem& files);

}  // namespace dspack::reshard
