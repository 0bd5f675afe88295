// Open files of the operating system: descriptors, and files that are read, one class per read mode. Only
// file_system_posix.cpp includes this.
// Threads: a Descriptor is thread-compatible and closes what it holds; else see ReadFile. Errors: by the system's code,
// with the path; see FileSystem::open_read_as.
#pragma once

#include <memory>
#include <string_view>

#include "format/file_system.h"

struct stat;  // the system's

namespace dspack::format {

/// `code` is errno after "cannot {what}".
[[nodiscard]] Error system_error(const Path& path, std::string_view what, int code);

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

/// Permissions of a new file, before umask.
inline constexpr unsigned kUsualMode = 0644;
[[nodiscard]] Result<Descriptor> open_descriptor(const Path& path, int flags, std::string_view what,
                                                 unsigned mode = kUsualMode);

[[nodiscard]] Result<std::unique_ptr<ReadFile>> open_posix_file(const Path& path, ReadMode mode);
/// FileSystem::open_read_own.
[[nodiscard]] Result<std::unique_ptr<ReadFile>> open_own_posix_file(const Path& path);

[[nodiscard]] Writers writers_of(const struct ::stat& info);

}  // namespace dspack::format
