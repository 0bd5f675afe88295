#include "format/descriptor_posix.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

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

Result<Descriptor> open_descriptor(const Path& path, int flags, std::string_view what) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return system_error(path, what, errno);
  return Descriptor(fd);
}

}  // namespace dspack::format
