// What leaves a cache: experts, for the limit; whatever has been spoilt.
#include <algorithm>

#include "format/cache/weight_cache.h"

namespace dspack::format {

uint64_t WeightCache::taken_bytes() const {
  return std::max(whole_bytes_, limit_.set_aside_bytes) + other_bytes_ + reserved_bytes_;
}

/// Null: there is none, even without experts; then none was removed for it. Without bytes, what is above the limit
/// goes. What others are writing may be removed when it is there, so it is waited for: nobody asks for room who has
/// some.
Result<std::unique_ptr<WeightCache::Room>> WeightCache::make_room(uint64_t bytes) {
  for (;;) {
    std::optional<uint32_t> oldest;
    {
      std::unique_lock lock(mutex_);
      if (limit_.bytes == 0 || taken_bytes() + bytes <= limit_.bytes) return std::make_unique<Room>(*this, bytes);
      uint64_t removable_bytes = reserved_bytes_;
      for (uint32_t file = 0; file < files_.size(); ++file) {
        if (!files_[file].whole) continue;
        removable_bytes += planned_[file].size_bytes;
        if (!oldest || files_[file].last_use < files_[*oldest].last_use) oldest = file;
      }
      if (bytes > 0 && taken_bytes() + bytes > limit_.bytes + removable_bytes) return std::unique_ptr<Room>();
      if (!oldest && reserved_bytes_ == 0) return std::unique_ptr<Room>();
      if (!oldest) {
        room_left_.wait(lock);
        continue;
      }
    }
    TRY(remove_expert(*oldest));
  }
}

/// The file goes first: should the process die before the record, the next run misses it and says so.
Result<void> WeightCache::remove_expert(uint32_t file) {
  {
    const std::lock_guard lock(mutex_);
    File& entry = files_[file];
    if (!entry.whole) return {};
    if (!entry.whole->tensors.empty()) entry.first_fetch = std::move(entry.whole->tensors);
    entry.whole.reset();
    other_bytes_ -= planned_[file].size_bytes;
  }
  readers_.forget(file);
  TRY(folder_.files().remove_tree(final_path(file)));
  return folder_.journal().append(cache_line_removed(planned_[file].path));
}

void WeightCache::note_use(ExpertKey expert) {
  const auto found = file_of_.find(expert);
  if (found == file_of_.end()) return;
  const std::lock_guard lock(mutex_);
  File& file = files_[found->second];
  if (!file.whole) return;
  file.last_use = ++clock_;
  if (limit_.bytes != 0) used_.push_back(planned_[found->second].path);
}

Result<void> WeightCache::drop_expert(ExpertKey expert) {
  return remove_expert(file_of_.at(expert));
}

Result<void> WeightCache::drop_tensor(uint32_t tensor) {
  const Place place = places_[tensor];
  {
    const std::lock_guard lock(mutex_);
    File& file = files_[place.file];
    if (file.tensors.erase(place.slot) > 0) whole_bytes_ -= catalogue_.tensors()[tensor].range.size();
    if (const auto blocks = file.blocks.find(place.slot); blocks != file.blocks.end()) {
      for (const auto& [block, digest] : blocks->second)
        other_bytes_ -= block_bytes(tensor, block);
      file.blocks.erase(blocks);
    }
  }
  return folder_.journal().append(cache_line_removed(planned_[place.file].path, {place.slot}));
}

}  // namespace dspack::format
