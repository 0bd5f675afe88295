// The room that a cache leaves on its disk where nobody has bounded it: whatever else is on the disk, it keeps nothing
// that would leave less. A disk that is fuller already: nothing that would leave less than the cache then takes.
// Threads: pure functions of the disk. Errors: budget (there is no such room).
#pragma once

#include "format/file_system.h"

namespace dspack::format {

/// What stays free of a disk of this size: 5 %, which file systems need to find space quickly and keep back for the
/// system, and at least 10 GB, so that an update or another program does not run out of it.
[[nodiscard]] uint64_t usual_stay_free(uint64_t disk_bytes);

struct CacheSize {
  uint64_t kept_bytes = 0;
  uint64_t more_bytes = 0;  // that are to be kept
};
/// Whether so many more bytes below `root` leave `stay_free_bytes`; 0: all of the disk may be taken.
[[nodiscard]] Result<void> leave_disk_room(FileSystem& files, const Path& root, uint64_t stay_free_bytes,
                                           const CacheSize& size);

}  // namespace dspack::format
