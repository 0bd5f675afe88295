// The output folder of a run: separate from the source, empty or resumable, locked by one run at a time.
// Threads: thread-safe.
// Errors: invalid (folders inside each other), conflict (something else is there, another run holds it), budget (too
// little disk, too few free inodes), io.
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
/// Of the file in it whose lock a run holds.
inline constexpr char kLockName[] = "lock";
/// Files that do not yet have all their bytes, or not their final form.
[[nodiscard]] inline format::Path part_folder(const format::Path& out) {
  return work_folder(out) / "part";
}

/// Files of an unpacking that have all their bytes: they get their names in the folder when all do.
[[nodiscard]] inline format::Path done_folder(const format::Path& out) {
  return work_folder(out) / "done";
}

using format::DurableFolders;

/// What a run does in its output folder; each kind knows its own unfinished work again by a file in the work folder.
enum class WorkKind {
  repack,  // .reshard/journal
  parts,   // .reshard/parts/, of a repack
  unpack,  // .reshard/unpack
};
[[nodiscard]] format::Path work_mark(const format::Path& out, WorkKind kind);

/// Refuses an output inside the source, which the next run would take for part of it, and a source inside the output.
[[nodiscard]] Result<void> check_apart(const format::Repository& source, const format::Path& out);

/// A folder that holds anything but unfinished work of this kind is not ours to fill: a work folder in it says so only
/// by this kind's mark, or if there is nothing else, not even in the work folder. Parts that `reshard seal` is joining
/// lie beside the journal that it goes on with.
[[nodiscard]] Result<void> check_target(const format::Path& out, WorkKind kind, format::FileSystem& files);

/// Marks the folder as work in progress and takes its lock: alone for a whole run, shared among parts.
[[nodiscard]] Result<std::unique_ptr<format::FileLock>> lock_work_folder(const format::Path& out, format::LockKind kind,
                                                                         format::FileSystem& files);

/// Removes the work folder of a run that has ended: what runs put there, by its names, the mark after what it speaks
/// for and the lock last. Anything else stays, and so does the folder.
[[nodiscard]] Result<void> remove_work_folder(const format::Path& out, format::FileSystem& files);

/// Whether `need_bytes` more bytes fit into `free_bytes` of the disk that holds `out`.
[[nodiscard]] Result<void> check_disk(uint64_t need_bytes, uint64_t free_bytes, const format::Path& out);
/// Into what is free now.
[[nodiscard]] Result<void> check_disk(uint64_t need_bytes, const format::Path& out, format::FileSystem& files);

/// Whether `need_files` more files and folders can be made there: a disk may have bytes left and no inodes.
[[nodiscard]] Result<void> check_free_files(uint64_t need_files, const format::Path& out, format::FileSystem& files);

}  // namespace dspack::reshard
