#include "format/cache/disk_room.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"

namespace dspack::format {

uint64_t usual_stay_free(uint64_t disk_bytes) {
  constexpr uint64_t kLeastRoom = 10'000'000'000;
  constexpr uint64_t kRoomShare = 20;  // 5 %
  return std::max(disk_bytes / kRoomShare, kLeastRoom);
}

Result<void> leave_disk_room(FileSystem& files, const Path& root, uint64_t stay_free_bytes, const CacheSize& size) {
  if (stay_free_bytes == 0) return {};
  const auto free = files.free_bytes(root);
  if (!free) return {};  // the write itself will report a full disk
  const uint64_t stays = std::min(stay_free_bytes, saturating_add(size.kept_bytes, size.more_bytes));
  if (*free >= saturating_add(size.more_bytes, stays)) return {};
  return Error{ErrorKind::budget,
               fmt::format("{}: {} of the disk are free, of which {} stay free unless --disk SIZE bounds this cache",
                           root.string(), size_words(*free), size_words(stays))};
}

}  // namespace dspack::format
