// An open file of the operating system, for the files that make POSIX calls; nobody else includes this.
// Threads: thread-compatible. Lifetime: a Descriptor closes what it holds. Errors: by the system's code, with the path.
#pragma once

#include <string_view>

#include "format/file_system.h"

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

[[nodiscard]] Result<Descriptor> open_descriptor(const Path& path, int flags, std::string_view what);

}  // namespace dspack::format
