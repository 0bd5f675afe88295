// Puts files into the page cache and out of it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

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

/// Has the page cache hold the file's first bytes, and no more of it than it did.
inline void put_into_page_cache(const std::filesystem::path& path, size_t bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  DSPACK_CHECK(fd >= 0, "cannot open " + path.string());
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);  // or the system would read ahead, and go on after we are done
  std::vector<char> into(bytes);
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, into.data() + done, bytes - done, static_cast<off_t>(done));
    DSPACK_CHECK(got > 0, "cannot read " + path.string());
    done += static_cast<size_t>(got);
  }
  ::close(fd);
}

}  // namespace dspack::test
