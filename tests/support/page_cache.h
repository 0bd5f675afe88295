// Puts a file on the disk and out of the page cache.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "format/base/check.h"

namespace dspack::test {

/// Writes back what is not yet on the disk, and has the system let go of the file's pages. Others that use them keep
/// them.
inline void drop_from_page_cache(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  DSPACK_CHECK(fd >= 0, "cannot open " + path.string());
  DSPACK_CHECK(::fsync(fd) == 0, "cannot sync " + path.string());
  // Twice: pages that another core still had on its way into the cache's lists are only found then.
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

}  // namespace dspack::test
