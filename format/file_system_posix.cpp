// The operating system's files, by POSIX calls. Only this file and read_file_posix.cpp (for reading) access data files
// that way.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "format/base/ids.h"
#include "format/base/page_buffer.h"
#include "format/base/size.h"
#include "format/file_system.h"
#include "format/read_file_posix.h"

namespace dspack::format {
namespace {

Result<void> write_all(const Path& path, int fd, uint64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t put = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error(path, "write", errno);
    offset += static_cast<uint64_t>(put);
    from = from.subspan(static_cast<size_t>(put));
  }
  return {};
}

/// The path, or its nearest existing parent.
Path nearest_existing(const Path& path) {
  std::error_code code;
  Path probe = std::filesystem::absolute(path, code);
  while (!std::filesystem::exists(probe, code) && probe.has_relative_path())
    probe = probe.parent_path();
  return probe;
}

/// The whole pages of a piece that is to be written at `offset`: [begin, end) relative to the piece; empty if memory
/// and offset are not equally aligned.
ByteRange whole_pages(uint64_t offset, std::span<const std::byte> from) {
  const uint64_t begin = (kPageBytes - offset % kPageBytes) % kPageBytes;
  if (from.size() < begin || reinterpret_cast<uintptr_t>(from.data()) % kPageBytes != offset % kPageBytes) return {};
  return {begin, begin + (from.size() - begin) / kPageBytes * kPageBytes};
}

/// Small pieces go through the page cache; large aligned ones directly to the disk.
class PosixWriteFile final : public WriteFile {
 public:
  PosixWriteFile(Path path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  Result<void> write(uint64_t offset, std::span<const std::byte> from) override {
    const ByteRange pages = whole_pages(offset, from);
    if (pages.size() < kDirectBytes) return write_all(path_, fd_.get(), offset, from);
    TRY(write_all(path_, fd_.get(), offset, from.first(pages.begin)));
    TRY(write_pages(offset + pages.begin, from.subspan(pages.begin, pages.size())));
    return write_all(path_, fd_.get(), offset + pages.end, from.subspan(pages.end));
  }

  Result<void> resize(uint64_t bytes) override {
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return system_error(path_, "set the size", errno);
    return {};
  }

  Result<void> sync() override {
    if (::fdatasync(fd_.get()) != 0) return system_error(path_, "sync", errno);
    return {};
  }

 private:
  // Below this, the latency of a direct write outweighs the copy that it saves.
  static constexpr uint64_t kDirectBytes = 256ULL * 1024;

  Result<void> write_pages(uint64_t offset, std::span<const std::byte> from) {
    const int fd = direct_descriptor();
    if (fd < 0) return write_all(path_, fd_.get(), offset, from);
    const ssize_t put = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    // The ordinary write does what the direct one refuses or leaves over, and reports the error if it cannot.
    const size_t done = put > 0 ? static_cast<size_t>(put) : 0;
    return write_all(path_, fd_.get(), offset + done, from.subspan(done));
  }

  /// -1 if the file system has no direct writes. Several threads may write at once: opened by the first.
  int direct_descriptor() {
    std::call_once(direct_once_, [this] {
      auto opened = open_descriptor(path_, O_WRONLY | O_DIRECT | O_NOFOLLOW, "open for direct writing");
      if (opened) direct_.emplace(std::move(opened).value());
    });
    return direct_ ? direct_->get() : -1;
  }

  Path path_;
  Descriptor fd_;
  std::once_flag direct_once_;
  std::optional<Descriptor> direct_;  // set once, by direct_once_
};

/// A device, a pipe, or a descriptor of this process: written in order, unless it is seekable like /dev/null.
class PosixStream final : public WriteFile {
 public:
  enum class Order { any, given };

  PosixStream(Path path, Descriptor fd, Order order) : path_(std::move(path)), fd_(std::move(fd)), order_(order) {}

  Result<void> write(uint64_t offset, std::span<const std::byte> from) override {
    if (order_ == Order::any) return write_all(path_, fd_.get(), offset, from);
    const std::lock_guard lock(mutex_);
    if (offset != written_)
      return Error{ErrorKind::unsupported,
                   path_.string() + ": is no ordinary file, and this is not written from its beginning to its end"};
    while (!from.empty()) {
      const ssize_t put = ::write(fd_.get(), from.data(), from.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return system_error(path_, "write", errno);
      written_ += static_cast<uint64_t>(put);
      from = from.subspan(static_cast<size_t>(put));
    }
    return {};
  }

  Result<void> resize(uint64_t /*bytes*/) override { return {}; }
  Result<void> sync() override { return {}; }

 private:
  Path path_;
  Descriptor fd_;
  Order order_;
  std::mutex mutex_;
  uint64_t written_ = 0;  // guarded by mutex_
};

/// Opens a file for writing; refuses symbolic links.
Result<Descriptor> open_own(const Path& path, int flags, std::string_view what, unsigned mode = kUsualMode) {
  auto opened = open_descriptor(path, flags | O_NOFOLLOW, what, mode);
  if (opened) return opened;
  std::error_code unknown;
  const std::filesystem::file_type there = std::filesystem::symlink_status(path, unknown).type();
  const bool exists = there != std::filesystem::file_type::not_found && there != std::filesystem::file_type::none;
  if ((flags & O_EXCL) != 0 && exists) return Error{ErrorKind::conflict, path.string() + ": exists already"};
  if (there == std::filesystem::file_type::symlink) {
    return Error{ErrorKind::invalid,
                 path.string() +
                     ": is a symbolic link; what it leads to is not written to: remove the link, or "
                     "choose another place"};
  }
  return opened;
}

int flags_of(OpenMode mode) {
  switch (mode) {
    case OpenMode::keep: return O_RDWR | O_CREAT;
    case OpenMode::truncate: return O_RDWR | O_CREAT | O_TRUNC;
    case OpenMode::create:
    case OpenMode::create_private: break;
  }
  return O_RDWR | O_CREAT | O_EXCL;
}

class PosixLock final : public FileLock {
 public:
  explicit PosixLock(Descriptor fd) : fd_(std::move(fd)) {}

 private:
  Descriptor fd_;  // flock ends with the last descriptor of this open file
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<ReadFile>> open_read(const Path& path) override {
    return open_posix_file(path, ReadMode::buffered);
  }

  Result<std::unique_ptr<ReadFile>> open_read_as(const Path& path, ReadMode mode) override {
    return open_posix_file(path, mode);
  }

  Result<std::unique_ptr<ReadFile>> open_read_own(const Path& path) override { return open_own_posix_file(path); }

  Result<std::unique_ptr<WriteFile>> open_write(const Path& path, OpenMode mode) override {
    if (const auto number = named_descriptor(path)) {
      Descriptor copy(::fcntl(*number, F_DUPFD_CLOEXEC, 0));
      if (copy.get() < 0) return system_error(path, "open for writing", errno);
      return std::unique_ptr<WriteFile>(
          std::make_unique<PosixStream>(path, std::move(copy), PosixStream::Order::given));
    }
    constexpr unsigned kOwnerAlone = S_IRUSR | S_IWUSR;
    TRY_ASSIGN(Descriptor fd, open_own(path, flags_of(mode), "open for writing",
                                       mode == OpenMode::create_private ? kOwnerAlone : kUsualMode));
    struct ::stat info {};
    if (::fstat(fd.get(), &info) != 0) return system_error(path, "stat", errno);
    if (S_ISBLK(info.st_mode)) return Error{ErrorKind::invalid, path.string() + ": is a disk, not a file"};
    if (!S_ISREG(info.st_mode)) {
      const bool any = S_ISCHR(info.st_mode) && ::lseek(fd.get(), 0, SEEK_CUR) >= 0;
      const auto order = any ? PosixStream::Order::any : PosixStream::Order::given;
      return std::unique_ptr<WriteFile>(std::make_unique<PosixStream>(path, std::move(fd), order));
    }
    return std::unique_ptr<WriteFile>(std::make_unique<PosixWriteFile>(path, std::move(fd)));
  }

  Result<std::optional<FileInfo>> stat(const Path& path) override {
    struct ::stat link {};
    struct ::stat info {};
    if (::lstat(path.c_str(), &link) != 0 || ::stat(path.c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return std::optional<FileInfo>();
      return system_error(path, "stat", errno);
    }
    return std::optional(FileInfo{.size_bytes = narrow<uint64_t>(info.st_size),
                                  .allocated_bytes = narrow<uint64_t>(info.st_blocks) * 512,  // POSIX's unit
                                  .is_directory = S_ISDIR(info.st_mode),
                                  .is_regular = S_ISREG(info.st_mode),
                                  .is_link = S_ISLNK(link.st_mode),
                                  .modified_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec,
                                  .changed_ns = info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec,
                                  .writers = writers_of(info)});
  }

  Result<std::vector<std::string>> list(const Path& folder) override {
    std::error_code code;
    std::filesystem::directory_iterator entries(folder, code);
    std::vector<std::string> names;
    for (; !code && entries != std::filesystem::directory_iterator(); entries.increment(code)) {
      names.push_back(entries->path().filename().string());
    }
    if (code) return system_error(folder, "list", code.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> make_folders(const Path& folder) override {
    std::error_code code;
    std::filesystem::create_directories(folder, code);
    if (code) return system_error(folder, "create the folder", code.value());
    return {};
  }

  Result<void> make_private_folders(const Path& folder) override {
    Path made;
    for (const Path& name : folder) {
      made /= name;
      struct ::stat info {};
      if (::mkdir(made.c_str(), S_IRWXU) == 0 || (::stat(made.c_str(), &info) == 0 && S_ISDIR(info.st_mode))) continue;
      return system_error(folder, "create the folder", errno);
    }
    return {};
  }

  Result<void> rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    const int code = errno;  // saved before making the text, which may change it
    return system_error(from, "rename to " + to.string(), code);
  }

  Result<void> make_link(const Path& target, const Path& link) override {
    if (::symlink(target.c_str(), link.c_str()) == 0) return {};
    if (errno == EEXIST) return Error{ErrorKind::conflict, link.string() + ": exists already"};
    // Errors of file systems without links: EPERM from local ones, the others from network ones.
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS) {
      return Error{ErrorKind::unsupported, link.string() + ": this file system has no symbolic links"};
    }
    return system_error(link, "make a link", errno);
  }

  Result<std::optional<Path>> read_link(const Path& path) override {
    std::error_code code;
    const std::filesystem::file_status status = std::filesystem::symlink_status(path, code);
    if (status.type() != std::filesystem::file_type::symlink) return std::optional<Path>();
    Path target = std::filesystem::read_symlink(path, code);
    if (code) return system_error(path, "read the link", code.value());
    return std::optional(std::move(target));
  }

  Result<void> remove_file(const Path& path) override {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
    const int code = errno;
    // Linux returns EISDIR; POSIX allows EPERM, which the parent folder can also cause.
    std::error_code unknown;
    if (code == EISDIR || (code == EPERM && std::filesystem::is_directory(path, unknown)))
      return Error{ErrorKind::conflict, path.string() + ": is a folder where a file of ours belongs; move it away"};
    return system_error(path, "remove", code);
  }

  Result<void> remove_empty_folder(const Path& path) override {
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST) return {};
    return system_error(path, "remove the folder", errno);
  }

  Result<void> remove_tree(const Path& path) override {
    std::error_code code;
    std::filesystem::remove_all(path, code);
    if (code) return system_error(path, "remove", code.value());
    return {};
  }

  Result<void> sync_folder(const Path& folder) override {
    TRY_ASSIGN(const Descriptor fd, open_descriptor(folder, O_RDONLY | O_DIRECTORY, "open the folder"));
    if (::fsync(fd.get()) != 0) return system_error(folder, "sync the folder", errno);
    return {};
  }

  Result<uint64_t> free_bytes(const Path& path) override {
    const Path probe = nearest_existing(path);
    std::error_code code;
    const std::filesystem::space_info space = std::filesystem::space(probe, code);
    if (code) return system_error(probe, "ask for the free space", code.value());
    return static_cast<uint64_t>(space.available);
  }

  Result<std::optional<uint64_t>> disk_bytes(const Path& path) override {
    const Path probe = nearest_existing(path);
    std::error_code code;
    const std::filesystem::space_info space = std::filesystem::space(probe, code);
    if (code) return system_error(probe, "ask for the size of the disk", code.value());
    return std::optional<uint64_t>(space.capacity);
  }

  Result<std::optional<uint64_t>> free_files(const Path& path) override {
    const Path probe = nearest_existing(path);
    struct ::statvfs disk {};
    if (::statvfs(probe.c_str(), &disk) != 0) return system_error(probe, "ask for the free files", errno);
    if (disk.f_files == 0) return std::optional<uint64_t>();  // btrfs and others create inodes on demand
    return std::optional<uint64_t>(disk.f_favail);
  }

  Result<std::unique_ptr<FileLock>> lock(const Path& path, LockKind kind) override {
    for (;;) {
      TRY_ASSIGN(Descriptor fd, open_own(path, O_RDWR | O_CREAT, "open the lock file"));
      if (::flock(fd.get(), (kind == LockKind::shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return system_error(path, "lock", errno);
        return Error{ErrorKind::conflict, path.string() + ": locked by another running process"};
      }
      // The previous holder may have removed the file while we opened it; then no other process sees our lock.
      struct ::stat ours {};
      struct ::stat named {};
      if (::fstat(fd.get(), &ours) != 0) return system_error(path, "stat", errno);
      if (::stat(path.c_str(), &named) == 0 && named.st_ino == ours.st_ino && named.st_dev == ours.st_dev) {
        return std::unique_ptr<FileLock>(std::make_unique<PosixLock>(std::move(fd)));
      }
    }
  }
};

}  // namespace

Result<std::string> read_system_text(const Path& path, uint64_t limit_bytes) {
  TRY_ASSIGN(const Descriptor fd, open_descriptor(path, O_RDONLY | O_NONBLOCK, "open"));
  std::string text;
  std::array<char, 4096> piece{};
  while (text.size() < limit_bytes) {
    const ssize_t got = ::read(fd.get(), piece.data(), std::min<uint64_t>(piece.size(), limit_bytes - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path, "read", errno);
    if (got == 0) break;
    text.append(piece.data(), static_cast<size_t>(got));
  }
  return text;
}

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

uint64_t open_file_limit() {
  struct ::rlimit limit {};
  // POSIX promises every process 20 files.
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 20;
}

}  // namespace dspack::format
