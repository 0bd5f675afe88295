// The only interface to the operating system's files, so that tests can lose power, fill disks and count calls.
// Threads: a FileSystem is thread-safe; a ReadFile may be read by many threads at once; a WriteFile may be written by
// many threads at once if their ranges do not overlap. Lifetime: a file owns its descriptor.
// Errors: not_found, io (everything else that the system refuses), budget (no space left, too many open files),
// conflict (a lock is held), unsupported (a read mode that a file system lacks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"

namespace dspack::format {

using Path = std::filesystem::path;

/// How a file's bytes get into memory.
enum class ReadMode {
  buffered,  // through the page cache, which keeps them
  once,      // through the page cache, whose contents are afterwards as before
  direct,    // past the page cache; without a copy if memory and offset are equal modulo kPageBytes
  mapped,    // by mapping the file; the page cache's contents are afterwards as before
};

class ReadFile {
 public:
  virtual ~ReadFile() = default;
  /// Size at the time of opening.
  [[nodiscard]] virtual uint64_t size_bytes() const = 0;
  /// Fills `into` from `offset`. A file that ends too early is `corrupt`, never a short success.
  [[nodiscard]] virtual Result<void> read(uint64_t offset, std::span<std::byte> into) const = 0;
  /// Maps the file's pages over `over`, part of a PageRange that is congruent to `offset` modulo kMapGrid; every grid
  /// piece that it touches is replaced by the file's. `over` then has the bytes that `read` would deliver, without a
  /// copy. The pages belong to the page cache: the system may evict them and read them again, and what others write to
  /// the file is visible. Writes to the memory stay in this process. The mapping outlives the file. Errors: those of
  /// reading; unsupported; budget (too many mappings).
  [[nodiscard]] virtual Result<void> map(uint64_t offset, std::span<std::byte> over) const;
  /// Number of bytes of a range in the page cache; nullopt: the system does not report it. For a file that this user
  /// may not write, the system may report all.
  [[nodiscard]] virtual std::optional<uint64_t> cached_bytes(ByteRange /*range*/) const { return std::nullopt; }
};

class WriteFile {
 public:
  virtual ~WriteFile() = default;
  /// Large pieces whose memory and offset are equally aligned (see PageBuffer) are written directly to the disk if the
  /// system can: copying hundreds of gigabytes through the page cache costs more processor time than the rest of the
  /// work, and pushes everything else out of memory.
  [[nodiscard]] virtual Result<void> write(uint64_t offset, std::span<const std::byte> from) = 0;
  [[nodiscard]] virtual Result<void> resize(uint64_t bytes) = 0;
  /// Returns when the bytes written so far are safe from a loss of power.
  [[nodiscard]] virtual Result<void> sync() = 0;
};

/// Exclusive: the only holder. Shared: together with other shared holders, but no exclusive one.
enum class LockKind { exclusive, shared };

/// Held until destruction; the system also releases it when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// Who, apart from root, may have written a file.
enum class Writers {
  user,          // only this process's user
  others,        // also members of its group, or all users: by its permissions
  another_user,  // it belongs to another user
};

struct FileInfo {
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;  // on the disk: less than the size if the file has holes
  bool is_directory = false;
  bool is_regular = false;  // not a folder, pipe, socket or device
  bool is_link = false;     // the name is a symbolic link; all other fields describe its target
  int64_t modified_ns = 0;  // since the epoch; shows whether a local source has changed
  int64_t changed_ns = 0;   // since the epoch, for content or attributes: programs cannot set it
  Writers writers = Writers::user;
};

/// Refuses a file that others may have written, with the remedy: digests prove nothing against someone who may change
/// them.
[[nodiscard]] Result<void> check_writers(const Path& path, Writers writers);

/// Who may read what is created: as the user's umask allows, or the owner alone, if the file system has owners.
enum class Access { usual, owner };

enum class OpenMode {
  keep,            // create if absent, else keep the contents
  truncate,        // create if absent, else discard the contents
  create,          // create; conflict if it exists
  create_private,  // as create, with Access::owner
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_read(const Path& path) = 0;
  /// open_read in a given mode. Errors: also unsupported (the file system lacks the mode; direct reads may also be
  /// refused so when they are first tried).
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_read_as(const Path& path, ReadMode mode);
  /// open_read of a file that only this user (or root) can have written. Checked after opening, so that it cannot be
  /// replaced in between. Errors: also invalid (a symbolic link, a file of another user or one that others may write).
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_read_own(const Path& path) { return open_read(path); }
  /// Never follows a symbolic link, which could make us overwrite any file of this user: invalid. Exception: the
  /// system's names of this process's own descriptors (/dev/stdout, /dev/fd/N), which are written from their current
  /// position. A device or a pipe is written in order; resize and sync do nothing.
  [[nodiscard]] virtual Result<std::unique_ptr<WriteFile>> open_write(const Path& path, OpenMode mode) = 0;
  /// nullopt: there is nothing, or a link to nothing.
  [[nodiscard]] virtual Result<std::optional<FileInfo>> stat(const Path& path) = 0;
  /// Names in a folder, sorted; not recursive.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(const Path& folder) = 0;
  [[nodiscard]] virtual Result<void> make_folders(const Path& folder) = 0;
  [[nodiscard]] virtual Result<void> rename(const Path& from, const Path& to) = 0;
  /// Makes `link` a symbolic link to `target`, which is stored unchanged. Errors: conflict (`link` exists), unsupported
  /// (the file system has no such links).
  [[nodiscard]] virtual Result<void> make_link(const Path& target, const Path& link);
  /// The target stored in a symbolic link; nullopt: `path` is not one.
  [[nodiscard]] virtual Result<std::optional<Path>> read_link(const Path& path);
  /// Removes a file, a link, or anything else but a folder: conflict. Succeeds if there is nothing.
  [[nodiscard]] virtual Result<void> remove_file(const Path& path) = 0;
  /// Removes an empty folder; succeeds, without removing it, if it is not empty.
  [[nodiscard]] virtual Result<void> remove_empty_folder(const Path& path) = 0;
  /// Removes anything, with all below it; only for what this program has made itself and no user has named. Succeeds if
  /// there is nothing. Removes a link, not its target.
  [[nodiscard]] virtual Result<void> remove_tree(const Path& path) = 0;
  /// Makes the names in a folder safe from a loss of power.
  [[nodiscard]] virtual Result<void> sync_folder(const Path& folder) = 0;
  /// Bytes that this user may still write to the disk of `path` (or of its nearest existing parent).
  [[nodiscard]] virtual Result<uint64_t> free_bytes(const Path& path) = 0;
  /// Size of that disk. nullopt: unknown.
  [[nodiscard]] virtual Result<std::optional<uint64_t>> disk_bytes(const Path& /*path*/) {
    return std::optional<uint64_t>();
  }
  /// Files and folders (inodes) that this user may still create there. nullopt: the file system has no limit.
  [[nodiscard]] virtual Result<std::optional<uint64_t>> free_files(const Path& /*path*/) {
    return std::optional<uint64_t>();
  }
  /// Takes a lock on a file (created if absent) without waiting. Errors: conflict (another holder excludes it), invalid
  /// (a symbolic link).
  [[nodiscard]] virtual Result<std::unique_ptr<FileLock>> lock(const Path& path, LockKind kind) = 0;
  /// make_folders, with Access::owner for the folders that it creates.
  [[nodiscard]] virtual Result<void> make_private_folders(const Path& folder) { return make_folders(folder); }
};

/// The operating system's own files.
[[nodiscard]] FileSystem& posix_file_system();

/// Files that this process may have open at once (ulimit -n).
[[nodiscard]] uint64_t open_file_limit();

/// Reads a whole small file. Errors: also budget (larger than `limit_bytes`).
[[nodiscard]] Result<std::string> read_text(FileSystem& files, const Path& path, uint64_t limit_bytes);

/// Reads a file below /proc or /sys, whose size is unknown before it is read. Cut at `limit_bytes`.
[[nodiscard]] Result<std::string> read_system_text(const Path& path, uint64_t limit_bytes);

/// The only writer of final names: after any crash either the old file or the whole new one exists. Writes and syncs a
/// temporary beside `path`, renames it, then syncs the folder.
[[nodiscard]] Result<void> write_sealed(FileSystem& files, const Path& path, std::string_view bytes,
                                        Access access = Access::usual);

/// Creates the temporary that will become `path`, at `temporary_of(path)`. Anything there already is removed first,
/// except a folder: conflict.
[[nodiscard]] Result<std::unique_ptr<WriteFile>> create_temporary(FileSystem& files, const Path& path,
                                                                  Access access = Access::usual);
/// A hidden name, which no file of a repository can have.
[[nodiscard]] Path temporary_of(const Path& path);

/// Writes a file that a user has named: with write_sealed if it is an ordinary file or does not exist yet; a stream
/// (is_stream) is written to directly.
[[nodiscard]] Result<void> write_output(FileSystem& files, const Path& path, std::string_view bytes);
/// Whether a path names a device, a pipe, or a descriptor of this process: /dev/null, /dev/stdout, /dev/fd/N.
[[nodiscard]] Result<bool> is_stream(FileSystem& files, const Path& path);
/// The descriptor of this process that a path names: /dev/stdout is 1, /dev/fd/N is N.
[[nodiscard]] std::optional<int> named_descriptor(const Path& path);

/// Whether components that begin with a dot are accepted: the Hub's listings contain .gitattributes, for example.
enum class HiddenNames { refused, accepted };

/// The rule for every relative path from outside (index, manifest, kept headers, journals, listings): it stays below
/// the folder that it is relative to, cannot be mistaken for a file of another program (.git/config) or of ours
/// (.reshard, .dspack-cache, temporaries), and can be printed. So no absolute path, no empty component, none that
/// begins with a dot, no backslash, no control character. Returns the reason if it breaks the rule.
[[nodiscard]] std::optional<std::string> unsafe_path_reason(std::string_view path,
                                                            HiddenNames hidden = HiddenNames::refused);

[[nodiscard]] inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Creates an output folder and those below it so that they survive a loss of power, also if an earlier run created
/// them.
class DurableFolders {
 public:
  /// `access`: for the folders that it creates.
  DurableFolders(FileSystem& files, Path out, Access access = Access::usual)
      : files_(files), out_(out.has_filename() ? std::move(out) : out.parent_path()), access_(access) {}
  [[nodiscard]] Result<void> make(const Path& folder);

 private:
  [[nodiscard]] Result<void> check_links(const Path& folder);
  [[nodiscard]] Result<void> sync_name(const Path& folder);

  FileSystem& files_;
  Path out_;
  Access access_;
  std::mutex mutex_;
  std::set<Path> known_;     // names synced by this run; guarded by mutex_
  std::set<Path> unlinked_;  // below out_, checked not to be links; guarded by mutex_
};

/// Whether `inner` is `outer` or lies below it. Both must be canonical, or one derived from the other.
[[nodiscard]] bool is_within(const Path& inner, const Path& outer);

}  // namespace dspack::format
