// Free-space rule for a cache without --disk: it never lets free space fall below `usual_stay_free`, or below its own
// size if that is less (on a disk that is already fuller).
// Threads: pure functions of the disk. Errors: budget (not enough free space).
#pragma once

#include "format/file_system.h"

namespace dspack::format {

/// Free space to leave on a disk of this size: 5 %, which file systems need to allocate quickly and reserve for the
/// system, and at least 10 GB, so that an update or another program does not run out of space.
[[nodiscard]] uint64_t usual_stay_free(uint64_t disk_bytes);

struct CacheSize {
  uint64_t kept_bytes = 0;
  uint64_t more_bytes = 0;  // about to be added
};
/// Checks that adding `size.more_bytes` below `root` leaves `stay_free_bytes`; 0: the whole disk may be used.
[[nodiscard]] Result<void> leave_disk_room(FileSystem& files, const Path& root, uint64_t stay_free_bytes,
                                           const CacheSize& size);

}  // namespace dspack::format
