#include "format/read_file_posix.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "format/base/page_buffer.h"
#include "format/base/page_range.h"
#include "format/base/size.h"

namespace dspack::format {

Error system_error(const Path& path, std::string_view what, int code) {
  ErrorKind kind = ErrorKind::io;
  if (code == ENOENT || code == ENOTDIR) kind = ErrorKind::not_found;
  if (code == ENOSPC || code == EDQUOT || code == EMFILE || code == ENFILE) kind = ErrorKind::budget;
  return {kind, fmt::format("{}: cannot {}: {}", path.string(), what, std::generic_category().message(code))};
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Writers writers_of(const struct ::stat& info) {
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) return Writers::another_user;
  return (info.st_mode & (S_IWGRP | S_IWOTH)) == 0 ? Writers::user : Writers::others;
}

Result<Descriptor> open_descriptor(const Path& path, int flags, std::string_view what, unsigned mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return system_error(path, what, errno);
  return Descriptor(fd);
}

namespace {

// Since Linux 6.14; the C library of older systems lacks the name, and older kernels return EOPNOTSUPP.
constexpr int kReadOnce = 0x00000080;  // RWF_DONTCACHE
// Since Linux 5.14; older kernels return EINVAL.
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ
// Buffer for direct reads that cannot go to their destination: large enough to keep a disk busy.
constexpr uint64_t kBounceBytes = 1 << 20;
// A larger file holds more than one expert (V3's have 44 MB).
constexpr uint64_t kSharedBytes = 256ULL << 20;

Error ends_early(const Path& path, uint64_t offset, uint64_t missing) {
  return {ErrorKind::corrupt, fmt::format("{}: the file ends at byte {}, {} bytes before it should (truncated?)",
                                          path.string(), offset, missing)};
}

/// The smallest range of whole pages around a range.
ByteRange pages_around(ByteRange range) {
  return {range.begin / kPageBytes * kPageBytes, round_up(range.end, kPageBytes)};
}

/// The whole pages of a file that the page cache holds or lacks. For a file that the user may not write, the system may
/// report that it holds all.
class PageCache {
 public:
  explicit PageCache(int fd) : fd_(fd) {}

  /// Runs of pages that are not cached, in ascending order; nullopt: the system does not report it.
  [[nodiscard]] std::optional<std::vector<ByteRange>> missing(ByteRange pages) const {
    void* map = ::mmap(nullptr, pages.size(), PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(pages.begin));
    if (map == MAP_FAILED) return std::nullopt;
    std::vector<unsigned char> held(pages.size() / kPageBytes);
    const bool known = ::mincore(map, pages.size(), held.data()) == 0;
    ::munmap(map, pages.size());
    if (!known) return std::nullopt;
    std::vector<ByteRange> runs;
    for (size_t i = 0; i < held.size(); ++i) {
      if ((held[i] & 1U) != 0) continue;
      const uint64_t at = pages.begin + i * kPageBytes;
      if (runs.empty() || runs.back().end != at) runs.push_back({at, at});
      runs.back().end += kPageBytes;
    }
    return runs;
  }

  /// Evicts clean pages; pages in use elsewhere stay.
  void drop(const std::vector<ByteRange>& runs) const {
    for (const ByteRange& run : runs)
      ::posix_fadvise(fd_, static_cast<off_t>(run.begin), static_cast<off_t>(run.size()), POSIX_FADV_DONTNEED);
  }

 private:
  int fd_;
};

/// The common part of all read modes.
class PosixReadFile : public ReadFile {
 public:
  PosixReadFile(Path path, Descriptor fd, uint64_t size_bytes)
      : path_(std::move(path)), fd_(std::move(fd)), size_bytes_(size_bytes) {}

  uint64_t size_bytes() const override { return size_bytes_; }

  std::optional<uint64_t> cached_bytes(ByteRange range) const override {
    range.end = std::min(range.end, size_bytes_);
    if (range.begin >= range.end) return 0;
    const auto missing = PageCache(fd()).missing(pages_around(range));
    if (!missing) return std::nullopt;
    uint64_t bytes = range.size();
    for (const ByteRange& run : *missing)
      bytes -= std::min(run.end, range.end) - std::max(run.begin, range.begin);
    return bytes;
  }

  Result<void> map(uint64_t offset, std::span<std::byte> over) const override {
    if (over.empty()) return {};
    TRY(check_length(offset, over.size()));
    const ByteRange pages{offset / kMapGrid * kMapGrid,
                          std::min(round_up(offset + over.size(), kMapGrid), round_up(size_bytes_, kPageBytes))};
    std::byte* const start = over.data() - (offset - pages.begin);
    DSPACK_CHECK(reinterpret_cast<uintptr_t>(start) % kMapGrid == 0, "memory that does not lie as the file does");
    constexpr int kFlags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    if (::mmap(start, pages.size(), PROT_READ | PROT_WRITE, kFlags, fd(), static_cast<off_t>(pages.begin)) ==
        MAP_FAILED) {
      const int code = errno;  // making the error's text may change it
      Error error = system_error(path(), "map", code);
      error.kind = code == ENOMEM || code == EAGAIN ? ErrorKind::budget : ErrorKind::unsupported;
      return error;
    }
    // Only a hint: pages read from now on are large ones, if the file system supports them.
    ::madvise(start, pages.size(), MADV_HUGEPAGE);
    const ByteRange wanted = pages_around({offset, offset + over.size()});
    return populate(start + (wanted.begin - pages.begin), wanted.size());
  }

 protected:
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const Path& path() const { return path_; }

  /// Checks that a range is in the file now: a page beyond the end of a truncated file would kill the process.
  [[nodiscard]] Result<void> check_length(uint64_t offset, uint64_t bytes) const {
    struct ::stat info {};
    if (::fstat(fd(), &info) != 0) return system_error(path(), "stat", errno);
    const uint64_t end = std::min(size_bytes(), narrow<uint64_t>(info.st_size));
    if (offset <= end && bytes <= end - offset) return {};
    return ends_early(path(), std::max(end, offset), offset + bytes - std::max(end, offset));
  }

  /// Reads mapped pages all at once, without a fault for each; a disk error is returned, whereas a fault would kill the
  /// process.
  [[nodiscard]] Result<void> populate(std::byte* pages, uint64_t bytes) const {
    if (::madvise(pages, bytes, kPopulateRead) == 0 || errno == EINVAL) return {};
    return system_error(path(), "read by its mapping", errno == EFAULT ? EIO : errno);
  }

 private:
  Path path_;
  Descriptor fd_;
  uint64_t size_bytes_;
};

class BufferedFile : public PosixReadFile {
 public:
  using PosixReadFile::PosixReadFile;

  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      const ssize_t got = ::pread(fd(), into.data(), into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return system_error(path(), "read", errno);
      if (got == 0) return ends_early(path(), offset, into.size());
      offset += static_cast<uint64_t>(got);
      into = into.subspan(static_cast<size_t>(got));
    }
    return {};
  }
};

/// Asks the kernel to drop what a read brings into the page cache; if it cannot, drops it after the read.
class OnceFile final : public BufferedFile {
 public:
  OnceFile(Path path, Descriptor file, uint64_t size_bytes)
      : BufferedFile(std::move(path), std::move(file), size_bytes) {
    // In a file of many experts, readahead fetches some that were not requested. In a file of one there is nothing more
    // to fetch, and without readahead Linux fills the cache page by page, which takes twice the processor time.
    if (size_bytes > kSharedBytes) ::posix_fadvise(fd(), 0, 0, POSIX_FADV_RANDOM);
  }

  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty() && kernel_drops_) {
      const iovec piece{.iov_base = into.data(), .iov_len = into.size()};
      const ssize_t got = ::preadv2(fd(), &piece, 1, static_cast<off_t>(offset), kReadOnce);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EOPNOTSUPP || errno == EINVAL)) {
        kernel_drops_ = false;
        break;
      }
      if (got < 0) return system_error(path(), "read", errno);
      if (got == 0) return ends_early(path(), offset, into.size());
      offset += static_cast<uint64_t>(got);
      into = into.subspan(static_cast<size_t>(got));
    }
    if (into.empty()) return {};
    const PageCache cache(fd());
    const auto missing = cache.missing(pages_around({offset, offset + into.size()}));
    auto done = BufferedFile::read(offset, into);
    if (missing) cache.drop(*missing);
    return done;
  }

 private:
  mutable std::atomic<bool> kernel_drops_{true};
};

class DirectFile final : public PosixReadFile {
 public:
  using PosixReadFile::PosixReadFile;

  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    const bool congruent = reinterpret_cast<uintptr_t>(into.data()) % kPageBytes == offset % kPageBytes;
    if (!congruent) return read_by_copy(offset, into);
    const uint64_t head = std::min<uint64_t>((kPageBytes - offset % kPageBytes) % kPageBytes, into.size());
    const uint64_t pages = (into.size() - head) / kPageBytes * kPageBytes;
    TRY(read_by_copy(offset, into.first(head)));
    TRY(read_pages(offset + head, into.subspan(head, pages), pages));
    return read_by_copy(offset + head + pages, into.subspan(head + pages));
  }

 private:
  Result<void> read_by_copy(uint64_t offset, std::span<std::byte> into) const {
    if (into.empty()) return {};
    const ByteRange all = pages_around({offset, offset + into.size()});
    PageBuffer bounce(std::min(all.size(), kBounceBytes));
    while (!into.empty()) {
      const uint64_t skip = offset % kPageBytes;
      const uint64_t piece = std::min<uint64_t>(into.size(), bounce.bytes().size() - skip);
      TRY(read_pages(offset - skip, bounce.bytes().first(round_up(skip + piece, kPageBytes)), skip + piece));
      std::memcpy(into.data(), bounce.bytes().data() + skip, piece);
      offset += piece;
      into = into.subspan(piece);
    }
    return {};
  }

  /// Reads whole pages into page-aligned memory; only the first `wanted` bytes need be in the file.
  Result<void> read_pages(uint64_t offset, std::span<std::byte> into, uint64_t wanted) const {
    for (uint64_t done = 0; done < wanted;) {
      const auto rest = into.subspan(done);
      const ssize_t got = ::pread(fd(), rest.data(), rest.size(), static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EINVAL && done % kPageBytes == 0) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("{}: its file system refuses direct reads; read it through the page cache", path().string())};
      }
      // After an end that is not on a page boundary, the system may refuse to read on.
      if (got == 0 || (got < 0 && errno == EINVAL)) return ends_early(path(), offset + done, wanted - done);
      if (got < 0) return system_error(path(), "read", errno);
      done += static_cast<uint64_t>(got);
    }
    return {};
  }
};

class MappedFile final : public PosixReadFile {
 public:
  MappedFile(Path path, Descriptor file, uint64_t size_bytes, std::byte* map)
      : PosixReadFile(std::move(path), std::move(file), size_bytes), map_(map) {}
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() override {
    if (map_ != nullptr) ::munmap(map_, size_bytes());
  }

  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    if (into.empty()) return {};
    TRY(check_length(offset, into.size()));
    const ByteRange pages = pages_around({offset, offset + into.size()});
    const PageCache cache(fd());
    const auto missing = cache.missing(pages);
    ::madvise(map_ + pages.begin, pages.size(), MADV_WILLNEED);
    TRY(populate(map_ + pages.begin, pages.size()));
    std::memcpy(into.data(), map_ + offset, into.size());
    ::madvise(map_ + pages.begin, pages.size(), MADV_DONTNEED);
    if (missing) cache.drop(*missing);
    return {};
  }

 private:
  std::byte* map_;  // null: an empty file
};

template <class File>
std::unique_ptr<ReadFile> make_file(const Path& path, Descriptor fd, uint64_t bytes) {
  return std::make_unique<File>(path, std::move(fd), bytes);
}

Result<std::unique_ptr<ReadFile>> map_file(const Path& path, Descriptor fd, uint64_t bytes) {
  void* map = nullptr;
  if (bytes > 0) {
    map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (map == MAP_FAILED) return system_error(path, "map", errno);
    ::madvise(map, bytes, MADV_RANDOM);  // each read gives its own hint
  }
  return std::unique_ptr<ReadFile>(
      std::make_unique<MappedFile>(path, std::move(fd), bytes, static_cast<std::byte*>(map)));
}

Result<struct ::stat> stat_regular(const Path& path, const Descriptor& fd) {
  struct ::stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error(path, "stat", errno);
  if (S_ISDIR(info.st_mode)) return Error{ErrorKind::invalid, path.string() + ": is a folder, not a file"};
  if (!S_ISREG(info.st_mode)) return Error{ErrorKind::invalid, path.string() + ": is not a regular file"};
  return info;
}

}  // namespace

Result<std::unique_ptr<ReadFile>> open_own_posix_file(const Path& path) {
  auto opened = open_descriptor(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW, "open");  // a pipe must not block us
  std::error_code unknown;
  if (!opened && std::filesystem::is_symlink(path, unknown))
    return Error{ErrorKind::invalid, path.string() + ": is a symbolic link, which is not followed here"};
  if (!opened) return opened.error();
  Descriptor fd = std::move(opened).value();
  TRY_ASSIGN(const struct ::stat info, stat_regular(path, fd));
  TRY(check_writers(path, writers_of(info)));
  return make_file<BufferedFile>(path, std::move(fd), narrow<uint64_t>(info.st_size));
}

Result<std::unique_ptr<ReadFile>> open_posix_file(const Path& path, ReadMode mode) {
  const int flags = O_RDONLY | O_NONBLOCK;  // a pipe must not block us
  auto opened = open_descriptor(path, mode == ReadMode::direct ? flags | O_DIRECT : flags, "open");
  if (!opened && mode == ReadMode::direct && open_descriptor(path, flags, "open")) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("{}: its file system refuses direct reads; read it through the page cache", path.string())};
  }
  if (!opened) return opened.error();
  Descriptor fd = std::move(opened).value();
  TRY_ASSIGN(const struct ::stat info, stat_regular(path, fd));
  const auto bytes = narrow<uint64_t>(info.st_size);
  switch (mode) {
    case ReadMode::buffered: return make_file<BufferedFile>(path, std::move(fd), bytes);
    case ReadMode::once: return make_file<OnceFile>(path, std::move(fd), bytes);
    case ReadMode::direct: return make_file<DirectFile>(path, std::move(fd), bytes);
    case ReadMode::mapped: return map_file(path, std::move(fd), bytes);
  }
  DSPACK_CHECK(false, "unknown ReadMode");
}

}  // namespace dspack::format
