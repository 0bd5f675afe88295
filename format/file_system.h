// The one seam to the operating system's files, so that tests can lose power, fill disks and count calls.
// Threads: a FileSystem is thread-safe; a ReadFile may be read from many threads at once; a WriteFile may be written
// from many threads at once as long as their ranges do not overlap. Lifetime: a file owns its descriptor.
// Errors: not_found, io (everything else that the system refuses), budget (no space left, too many open files),
// conflict (a lock is held), unsupported (a way of reading that a file system lacks).
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

/// How a file's bytes come into memory.
enum class ReadMode {
  buffered,  // through the page cache, which keeps them
  once,      // through the page cache, which afterwards holds what it held before
  direct,    // past the page cache, straight to their place where memory and offset are equal modulo kPageBytes
  mapped,    // by mapping the file; the page cache afterwards holds what it held before
};

class ReadFile {
 public:
  virtual ~ReadFile() = default;
  /// Size when it was opened.
  [[nodiscard]] virtual uint64_t size_bytes() const = 0;
  /// Fills `into` from `offset`. A file that ends before is `corrupt`, never a short success.
  [[nodiscard]] virtual Result<void> read(uint64_t offset, std::span<std::byte> into) const = 0;
  /// Lays the file's pages over `over`, part of a PageRange that is congruent to `offset` modulo kMapGrid; all of the
  /// grid's pieces that it touches become the file's. It then has the bytes that `read` would bring, without a copy.
  /// They are those of the page cache: the system may take them and read them again, and what others write to the file
  /// shows. What is written there stays in this process. The mapping outlives the file. Errors: those of reading;
  /// unsupported; budget (too many mappings).
  [[nodiscard]] virtual Result<void> map(uint64_t offset, std::span<std::byte> over) const;
  /// How many bytes of a range the page cache holds; nullopt: the system does not say. For a file that this user may
  /// not write, the system may say all.
  [[nodiscard]] virtual std::optional<uint64_t> cached_bytes(ByteRange /*range*/) const { return std::nullopt; }
};

class WriteFile {
 public:
  virtual ~WriteFile() = default;
  /// Large pieces whose memory and offset are equally aligned (see PageBuffer) go to the disk directly where the system
  /// can: a copy of hundreds of gigabytes through
  /// the page cache costs more processor time than the rest of the work, and pushes everything else out of memory.
  [[nodiscard]] virtual Result<void> write(uint64_t offset, std::span<const std::byte> from) = 0;
  [[nodiscard]] virtual Result<void> resize(uint64_t bytes) = 0;
  /// Returns when the bytes written so far survive a loss of power.
  [[nodiscard]] virtual Result<void> sync() = 0;
};

/// Exclusive: nobody else holds the lock. Shared: others may hold it so, and none exclusively.
enum class LockKind { exclusive, shared };

/// Held until destruction; also released by the system when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// Who can have written what is there, besides root.
enum class Writers {
  user,          // this process's user alone
  others,        // also members of its group, or all: by its permissions
  another_user,  // it belongs to somebody else
};

struct FileInfo {
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;  // on the disk: less than the size where a file has holes
  bool is_directory = false;
  bool is_regular = false;  // neither a folder nor a pipe, socket or device
  bool is_link = false;     // the name is a symbolic link; everything else here tells of what it points to
  int64_t modified_ns = 0;  // since the epoch; for telling whether a local source changed
  int64_t changed_ns = 0;   // likewise, of content or attributes: no program sets it
  Writers writers = Writers::user;
};

/// Refuses, with the remedy, what others can have written: digests say nothing against who may write them.
[[nodiscard]] Result<void> check_writers(const Path& path, Writers writers);

/// Who may look into what is made: whom the user's settings (umask) allow, or the owner alone, where the file system
/// knows owners.
enum class Access { usual, owner };

enum class OpenMode {
  keep,            // create if absent, keep what is there
  truncate,        // create if absent, empty what is there
  create,          // create; something is there: conflict
  create_private,  // create, with Access::owner
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_read(const Path& path) = 0;
  /// open_read, with a way of reading. One that this file system lacks: unsupported (direct reads may also be refused
  /// with that when they are first tried).
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_read_as(const Path& path, ReadMode mode);
  /// open_read of what nobody but this user (or root) can have written. Looked at when it is open, so that nothing can
  /// take its place in between. A symbolic link, a file of another user or one that others may write: invalid.
  [[nodiscard]] virtual Result<std::unique_ptr<ReadFile>> open_read_own(const Path& path) { return open_read(path); }
  /// Never through a symbolic link, which could make us overwrite any file of this user: invalid. But for the system's
  /// names of this process's own descriptors (/dev/stdout, /dev/fd/N): these are written from where they are. A device
  /// or a pipe is written in order, and has neither size nor sync.
  [[nodiscard]] virtual Result<std::unique_ptr<WriteFile>> open_write(const Path& path, OpenMode mode) = 0;
  /// nullopt: nothing there.
  [[nodiscard]] virtual Result<std::optional<FileInfo>> stat(const Path& path) = 0;
  /// Names in a folder, sorted; not recursive.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(const Path& folder) = 0;
  [[nodiscard]] virtual Result<void> make_folders(const Path& folder) = 0;
  [[nodiscard]] virtual Result<void> rename(const Path& from, const Path& to) = 0;
  /// Makes `link` a symbolic link to `target`, which is stored as it is written. Something is there: conflict. A file
  /// system without such links: unsupported.
  [[nodiscard]] virtual Result<void> make_link(const Path& target, const Path& link);
  /// What a symbolic link was made with; nullopt: there is none.
  [[nodiscard]] virtual Result<std::optional<Path>> read_link(const Path& path);
  /// A file, a link, or whatever else is no folder. A folder stays: conflict. Removing what is not there succeeds.
  [[nodiscard]] virtual Result<void> remove_file(const Path& path) = 0;
  /// A folder with nothing in it; one that holds something stays, and that is no error.
  [[nodiscard]] virtual Result<void> remove_empty_folder(const Path& path) = 0;
  /// Whatever is there, with all below it: only for what this program has made itself, and nobody has named. Removing
  /// what is not there succeeds. Of a link, the link is removed.
  [[nodiscard]] virtual Result<void> remove_tree(const Path& path) = 0;
  /// Makes the names in a folder survive a loss of power.
  [[nodiscard]] virtual Result<void> sync_folder(const Path& folder) = 0;
  /// Bytes that this user may still write to the disk that holds `path` (or its nearest existing parent).
  [[nodiscard]] virtual Result<uint64_t> free_bytes(const Path& path) = 0;
  /// Size of that disk. nullopt: not known.
  [[nodiscard]] virtual Result<std::optional<uint64_t>> disk_bytes(const Path& /*path*/) {
    return std::optional<uint64_t>();
  }
  /// Files and folders (inodes) that this user may still make there. nullopt: the file system sets no number.
  [[nodiscard]] virtual Result<std::optional<uint64_t>> free_files(const Path& /*path*/) {
    return std::optional<uint64_t>();
  }
  /// Takes a lock on a file (created if absent) without waiting. Held elsewhere in a way that excludes this: conflict.
  /// A symbolic link: invalid.
  [[nodiscard]] virtual Result<std::unique_ptr<FileLock>> lock(const Path& path, LockKind kind) = 0;
  /// make_folders, with Access::owner for what it creates.
  [[nodiscard]] virtual Result<void> make_private_folders(const Path& folder) { return make_folders(folder); }
};

/// The operating system's own files.
[[nodiscard]] FileSystem& posix_file_system();

/// Files that this process may have open at once (ulimit -n).
[[nodiscard]] uint64_t open_file_limit();

/// A whole small file. Larger than `limit_bytes`: budget.
[[nodiscard]] Result<std::string> read_text(FileSystem& files, const Path& path, uint64_t limit_bytes);

/// A text that the system makes up when it is read, below /proc or /sys: its size is not known before. Longer than
/// `limit_bytes`: cut there.
[[nodiscard]] Result<std::string> read_system_text(const Path& path, uint64_t limit_bytes);

/// The sole writer of final names: writes `path` so that after any crash either the old file or the whole new one is
/// there: a sibling temporary is written and synced, then renamed, then the folder is synced.
[[nodiscard]] Result<void> write_sealed(FileSystem& files, const Path& path, std::string_view bytes,
                                        Access access = Access::usual);

/// Creates the temporary that will become `path`, at `temporary_of(path)`. What an earlier run has left there, or
/// somebody has put there, is removed first; a folder is not: conflict.
[[nodiscard]] Result<std::unique_ptr<WriteFile>> create_temporary(FileSystem& files, const Path& path,
                                                                  Access access = Access::usual);
/// A hidden name, which no file of a repository can have.
[[nodiscard]] Path temporary_of(const Path& path);

/// Writes a file that a user has named: sealed where that is an ordinary file or nothing yet; what cannot be replaced
/// (is_stream) is written to as it is.
[[nodiscard]] Result<void> write_output(FileSystem& files, const Path& path, std::string_view bytes);
/// Whether a path names a device, a pipe, or a descriptor of this process: /dev/null, /dev/stdout, /dev/fd/N.
[[nodiscard]] Result<bool> is_stream(FileSystem& files, const Path& path);
/// The descriptor of this process that a path names in one of the system's ways: /dev/stdout is 1, /dev/fd/N is N.
[[nodiscard]] std::optional<int> named_descriptor(const Path& path);

/// Whether components that begin with a dot are accepted: .gitattributes is an ordinary part of a listing of the Hub.
enum class HiddenNames { refused, accepted };

/// The one rule for every relative path from outside (index, manifest, kept headers, journals, listings): it stays
/// below the folder that it is relative to, cannot pass for a file of another program (.git/config) or of ours
/// (.reshard, .dspack-cache, temporaries), and can be printed. So no absolute path, no empty component, none that
/// begins with a dot, no backslash, no control character. Returns the reason if it is broken.
[[nodiscard]] std::optional<std::string> unsafe_path_reason(std::string_view path,
                                                            HiddenNames hidden = HiddenNames::refused);

[[nodiscard]] inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Creates an output folder and those below it so that they survive a loss of power, whoever has created them.
class DurableFolders {
 public:
  /// `access`: of the folders that it creates.
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
  std::set<Path> known_;     // synced by this run; guarded by mutex_
  std::set<Path> unlinked_;  // below out_, looked at and no links; guarded by mutex_
};

/// Whether `inner` is `outer` or lies below it. Both canonical, or the one made from the other.
[[nodiscard]] bool is_within(const Path& inner, const Path& outer);

}  // namespace dspack::format
