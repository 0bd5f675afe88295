#include "format/cache/weight_cache.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/cache/disk_room.h"

namespace dspack::format {
namespace {

// Leaves room for the connections' sockets and the store's files below the usual limit of 1,024.
constexpr unsigned kMaxReaders = 256;

}  // namespace

WeightCache::WeightCache(CacheFolder& folder, const Checkpoint& catalogue, CacheLimit limit)
    : folder_(folder),
      catalogue_(catalogue),
      limit_(limit),
      planned_(plan_files({}, catalogue, {})),
      readers_(kMaxReaders, [this](uint32_t file) { return folder_.files().open_read(path_of(file)); }) {
  places_.resize(catalogue.tensors().size());
  files_.resize(planned_.size());
  for (uint32_t file = 0; file < planned_.size(); ++file) {
    for (uint32_t slot = 0; slot < planned_[file].tensors.size(); ++slot)
      places_[planned_[file].tensors[slot]] = {.file = file, .slot = slot};
    for (const ExpertKey expert : planned_[file].experts)
      file_of_.emplace(expert, file);
  }
}

WeightCache::~WeightCache() {
  // Only a hint for the order of eviction: failing to write it loses nothing.
  if (!used_.empty()) (void)folder_.journal().append(cache_line_used(used_));
}

Result<std::unique_ptr<WeightCache>> WeightCache::open(CacheFolder& folder, const Checkpoint& catalogue,
                                                       CacheLimit limit) {
  std::unique_ptr<WeightCache> cache(new WeightCache(folder, catalogue, limit));
  TRY(cache->take_over());
  TRY(cache->remove_strays());
  TRY(cache->make_room(0));
  return cache;
}

// Reading ------------------------------------------------------------------------------------------------------------

bool WeightCache::has_expert(ExpertKey expert) const {
  const auto found = file_of_.find(expert);
  if (found == file_of_.end()) return false;
  const std::lock_guard lock(mutex_);
  return files_[found->second].whole.has_value();
}

bool WeightCache::has_tensor(uint32_t tensor) const {
  const TensorLocation place = places_[tensor];
  const std::lock_guard lock(mutex_);
  return files_[place.file].tensors.contains(place.slot);
}

bool WeightCache::has_block(uint32_t tensor, uint64_t block) const {
  return recorded_block(tensor, block).has_value();
}

std::optional<Digest> WeightCache::recorded(uint32_t tensor) const {
  const TensorLocation place = places_[tensor];
  const std::lock_guard lock(mutex_);
  const File& file = files_[place.file];
  if (file.whole && !file.whole->tensors.empty()) return file.whole->tensors[place.slot];
  if (!file.first_fetch.empty()) return file.first_fetch[place.slot];
  const auto found = file.tensors.find(place.slot);
  return found == file.tensors.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Digest> WeightCache::recorded_block(uint32_t tensor, uint64_t block) const {
  const TensorLocation place = places_[tensor];
  const std::lock_guard lock(mutex_);
  const auto blocks = files_[place.file].blocks.find(place.slot);
  if (blocks == files_[place.file].blocks.end()) return std::nullopt;
  const auto found = blocks->second.find(block);
  return found == blocks->second.end() ? std::nullopt : std::optional(found->second);
}

Result<void> WeightCache::read(uint32_t tensor, uint64_t offset, std::span<std::byte> into) {
  const TensorLocation place = places_[tensor];
  TRY_ASSIGN(const OpenFiles::Use use, readers_.use(place.file));
  return use.file().read(planned_[place.file].offsets[place.slot] + offset, into);
}

// Writing ------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<WriteFile>> WeightCache::writer(uint32_t file) {
  const std::lock_guard lock(mutex_);
  const auto open = writers_.find(file);
  if (open != writers_.end()) return open->second;
  const PlannedFile& planned = planned_[file];
  const bool is_final = files_[file].is_moved;
  const Path path = is_final ? final_path(file) : folder_.part_path(planned.path);
  TRY(folder_.folders().make(path.parent_path()));
  TRY_ASSIGN(std::shared_ptr<WriteFile> writer, folder_.files().open_write(path, OpenMode::keep));
  TRY(writer->resize(planned.size_bytes));
  TRY(writer->write(0, as_bytes(planned_header(planned, catalogue_))));
  writers_.emplace(file, writer);
  return writer;
}

void WeightCache::close(uint32_t file) {
  const std::lock_guard lock(mutex_);
  writers_.erase(file);
}

Result<void> WeightCache::write(uint32_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  const TensorLocation place = places_[tensor];
  TRY(leave_room(bytes.size()));
  TRY_ASSIGN(const auto file, writer(place.file));
  return file->write(planned_[place.file].offsets[place.slot] + offset, bytes);
}

Result<void> WeightCache::claim(std::span<const std::pair<uint32_t, Digest>> tensors) {
  std::map<uint32_t, KeptParts> parts;
  for (const auto& [tensor, digest] : tensors)
    parts[places_[tensor].file].tensors.emplace(places_[tensor].slot, digest);
  std::string lines;
  for (const auto& [file, kept] : parts) {
    TRY_ASSIGN(const auto open, writer(file));
    TRY(open->sync());
    TRY(folder_.files().sync_folder(path_of(file).parent_path()));
    lines += cache_line(planned_[file].path, kept);
    close(file);
  }
  TRY(folder_.journal().append(lines));
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [tensor, digest] : tensors) {
      const TensorLocation place = places_[tensor];
      if (files_[place.file].tensors.insert_or_assign(place.slot, digest).second)
        whole_bytes_ += catalogue_.tensors()[tensor].range.size();
    }
  }
  for (const auto& [file, kept] : parts)
    TRY(move_if_whole(file));
  return {};
}

Result<bool> WeightCache::keep_blocks(uint32_t tensor, const std::map<uint64_t, Block>& blocks) {
  const TensorLocation place = places_[tensor];
  const PlannedFile& planned = planned_[place.file];
  uint64_t bytes = 0;
  for (const auto& [block, content] : blocks)
    bytes += content.bytes.size();
  TRY_ASSIGN(const auto room, make_room(bytes));
  if (!room) return false;
  std::map<uint64_t, Digest> digests;
  for (const auto& [block, content] : blocks) {
    TRY(write(tensor, block * block_bytes(tensor, 0), content.bytes));
    digests.emplace(block, content.digest);
  }
  TRY_ASSIGN(const auto open, writer(place.file));
  TRY(open->sync());
  TRY(folder_.files().sync_folder(path_of(place.file).parent_path()));
  KeptParts parts;
  parts.row_blocks.emplace(place.slot, digests);
  TRY(folder_.journal().append(cache_line(planned.path, parts)));
  const std::lock_guard lock(mutex_);
  for (const auto& [block, digest] : digests) {
    if (files_[place.file].blocks[place.slot].insert_or_assign(block, digest).second)
      other_bytes_ += block_bytes(tensor, block);
  }
  room->leave();
  return true;
}

bool WeightCache::has_all_tensors(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  return files_[file].tensors.size() == planned_[file].tensors.size();
}

/// Gives a complete file its final name; if the process is killed first, the next run does it.
Result<void> WeightCache::move_if_whole(uint32_t file) {
  if (!planned_[file].experts.empty() || !has_all_tensors(file)) return {};
  TRY(folder_.folders().make(final_path(file).parent_path()));
  const std::lock_guard lock(mutex_);
  if (files_[file].is_moved) return {};
  TRY(folder_.files().rename(folder_.part_path(planned_[file].path), final_path(file)));
  TRY(folder_.files().sync_folder(final_path(file).parent_path()));
  files_[file].is_moved = true;
  return {};
}

Result<KeptFile> WeightCache::write_expert(uint32_t file, ExpertKey expert,
                                           std::span<const std::span<const std::byte>> tensors) {
  const PlannedFile& planned = planned_[file];
  const Path part = folder_.part_path(planned.path);
  TRY(folder_.folders().make(part.parent_path()));
  TRY_ASSIGN(const auto out, folder_.files().open_write(part, OpenMode::truncate));
  const std::string header = planned_header(planned, catalogue_);
  TRY(out->write(0, as_bytes(header)));
  Sha256 whole;
  whole.update(as_bytes(header));
  KeptFile kept;
  const std::span<const uint32_t> order = catalogue_.expert(expert);
  for (size_t slot = 0; slot < planned.tensors.size(); ++slot) {
    const auto at = std::ranges::find(order, planned.tensors[slot]) - order.begin();
    const std::span<const std::byte> bytes = tensors[static_cast<size_t>(at)];
    TRY(out->write(planned.offsets[slot], bytes));
    if (catalogue_.manifest()) {
      whole.update(bytes);
      continue;
    }
    Sha256 own;
    update_together(std::array{&whole, &own}, bytes);
    kept.tensors.push_back(own.finish());
  }
  kept.sha256 = whole.finish();
  TRY(out->sync());
  TRY(folder_.files().sync_folder(part.parent_path()));
  return kept;
}

Result<bool> WeightCache::keep_expert(ExpertKey expert, std::span<const std::span<const std::byte>> tensors) {
  const uint32_t file = file_of_.at(expert);
  const PlannedFile& planned = planned_[file];
  if (has_expert(expert)) return true;
  TRY(leave_room(planned.size_bytes));
  TRY_ASSIGN(const auto room, make_room(planned.size_bytes));
  if (!room) return false;
  const Path part = folder_.part_path(planned.path);
  auto kept = write_expert(file, expert, tensors);
  if (!kept) {
    (void)folder_.files().remove_file(part);  // frees the disk space of the incomplete file
    return kept.error();
  }
  if (auto same = compare_with_first(file, kept->tensors); !same) {
    (void)folder_.files().remove_file(part);
    return same.error();
  }
  TRY(folder_.journal().append(cache_line(planned.path, *kept)));
  TRY(folder_.folders().make(final_path(file).parent_path()));
  TRY(folder_.files().rename(part, final_path(file)));
  TRY(folder_.files().sync_folder(final_path(file).parent_path()));
  const std::lock_guard lock(mutex_);
  files_[file].whole = std::move(*kept);
  files_[file].last_use = ++clock_;
  other_bytes_ += planned.size_bytes;
  room->leave();
  return true;
}

Result<void> WeightCache::compare_with_first(uint32_t file, const std::vector<Digest>& tensors) const {
  const std::lock_guard lock(mutex_);
  if (files_[file].first_fetch.empty() || files_[file].first_fetch == tensors) return {};
  return Error{
      ErrorKind::corrupt,
      fmt::format("{}: was fetched again and is not what it was the first time: the weights at {} have changed",
                  planned_[file].path, folder_.origin())};
}

void WeightCache::remember(ExpertKey expert, std::span<const std::span<const std::byte>> tensors) {
  if (catalogue_.manifest()) return;  // the manifest has its digests
  const uint32_t file = file_of_.at(expert);
  {
    const std::lock_guard lock(mutex_);
    if (!files_[file].first_fetch.empty()) return;
  }
  const std::span<const uint32_t> order = catalogue_.expert(expert);
  std::vector<Digest> digests;
  for (const uint32_t tensor : planned_[file].tensors) {
    const auto at = std::ranges::find(order, tensor) - order.begin();
    Sha256 hash;
    hash.update(tensors[static_cast<size_t>(at)]);
    digests.push_back(hash.finish());
  }
  const std::lock_guard lock(mutex_);
  files_[file].first_fetch = std::move(digests);
}

// Contents -----------------------------------------------------------------------------------------------------------

uint64_t WeightCache::blocks_of(uint32_t tensor) const {
  const uint64_t rows = rows_per_cache_block(catalogue_, tensor);
  return rows == 0 ? 0 : ceil_div(catalogue_.tensors()[tensor].shape[0], rows);
}

uint64_t WeightCache::block_bytes(uint32_t tensor, uint64_t block) const {
  const TensorEntry& entry = catalogue_.tensors()[tensor];
  const uint64_t bytes = entry.range.size() / entry.shape[0] * rows_per_cache_block(catalogue_, tensor);
  return std::min(bytes, entry.range.size() - block * bytes);
}

uint64_t WeightCache::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return whole_bytes_ + other_bytes_;
}

bool WeightCache::is_whole(uint32_t file) const {
  return missing_bytes(file) == 0;
}

Path WeightCache::path_of(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  return files_[file].whole || files_[file].is_moved ? final_path(file) : folder_.part_path(planned_[file].path);
}

uint64_t WeightCache::missing_bytes(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  const File& entry = files_[file];
  if (entry.whole) return 0;
  uint64_t missing = 0;
  for (uint32_t slot = 0; slot < planned_[file].tensors.size(); ++slot) {
    if (entry.tensors.contains(slot)) continue;
    const uint32_t tensor = planned_[file].tensors[slot];
    missing += catalogue_.tensors()[tensor].range.size();
    const auto blocks = entry.blocks.find(slot);
    if (blocks == entry.blocks.end()) continue;
    for (const auto& [block, digest] : blocks->second)
      missing -= block_bytes(tensor, block);
  }
  return missing;
}

// Takes over the contents left by earlier processes, as far as the journal and the files agree.
Result<void> WeightCache::take_over() {
  const CacheState& state = folder_.state();
  std::unordered_map<std::string_view, uint32_t> by_path;
  for (uint32_t file = 0; file < planned_.size(); ++file)
    by_path.emplace(planned_[file].path, file);
  const auto known = [&](const std::string& path) -> std::optional<uint32_t> {
    const auto found = by_path.find(path);
    return found == by_path.end() ? std::nullopt : std::optional(found->second);
  };
  for (const auto& [path, kept] : state.files) {
    if (const auto file = known(path)) TRY(take_over_expert(*file, kept));
  }
  for (const auto& [path, digests] : state.forgotten) {
    const auto file = known(path);
    if (file && digests.size() == planned_[*file].tensors.size()) files_[*file].first_fetch = digests;
  }
  for (const auto& [path, parts] : state.parts) {
    if (const auto file = known(path)) TRY(take_over_parts(*file, parts));
  }
  for (const std::string& path : state.used) {
    if (const auto file = known(path)) files_[*file].last_use = ++clock_;
  }
  return {};
}

Result<void> WeightCache::take_over_expert(uint32_t file, const KeptFile& kept) {
  const PlannedFile& planned = planned_[file];
  const bool fits = !planned.experts.empty() && (kept.tensors.empty() || kept.tensors.size() == planned.tensors.size());
  FileSystem& files = folder_.files();
  TRY_ASSIGN(auto info, files.stat(final_path(file)));
  const Path part = folder_.part_path(planned.path);
  if (fits && !info) {  // killed between its record and its rename
    TRY_ASSIGN(info, files.stat(part));
    if (info && info->size_bytes == planned.size_bytes) {
      TRY(folder_.folders().make(final_path(file).parent_path()));
      TRY(files.rename(part, final_path(file)));
    }
  }
  if (!fits || !info || info->size_bytes != planned.size_bytes)
    return folder_.journal().append(cache_line_removed(planned.path));
  files_[file].whole = kept;
  other_bytes_ += planned.size_bytes;
  return {};
}

Result<void> WeightCache::take_over_parts(uint32_t file, const KeptParts& parts) {
  const PlannedFile& planned = planned_[file];
  File& entry = files_[file];
  TRY_ASSIGN(auto info, folder_.files().stat(final_path(file)));
  entry.is_moved = info.has_value();
  if (!info) {
    TRY_ASSIGN(info, folder_.files().stat(folder_.part_path(planned.path)));
  }
  if (!info || info->size_bytes != planned.size_bytes || !planned.experts.empty()) {
    entry.is_moved = false;
    return folder_.journal().append(cache_line_removed(planned.path));
  }
  for (const auto& [slot, digest] : parts.tensors) {
    if (slot >= planned.tensors.size()) continue;
    entry.tensors.emplace(narrow<uint32_t>(slot), digest);
    whole_bytes_ += catalogue_.tensors()[planned.tensors[slot]].range.size();
  }
  for (const auto& [slot, blocks] : parts.row_blocks) {
    if (slot >= planned.tensors.size()) continue;
    const uint32_t tensor = planned.tensors[slot];
    for (const auto& [block, digest] : blocks) {
      if (block >= blocks_of(tensor)) continue;
      entry.blocks[narrow<uint32_t>(slot)].emplace(block, digest);
      other_bytes_ += block_bytes(tensor, block);
    }
  }
  return entry.is_moved ? Result<void>() : move_if_whole(file);
}

/// Removes experts that were being written when a process died: nothing claims them.
Result<void> WeightCache::remove_strays() {
  std::set<Path> folders;
  for (const PlannedFile& planned : planned_) {
    if (!planned.experts.empty()) folders.insert(folder_.part_path(planned.path).parent_path());
  }
  for (const Path& folder : folders) {
    TRY_ASSIGN(const auto there, folder_.files().stat(folder));
    if (there) TRY(folder_.files().remove_tree(folder));
  }
  return {};
}

// Eviction of experts for the limit; removal of damaged data.
uint64_t WeightCache::taken_bytes() const {
  return std::max(whole_bytes_, limit_.set_aside_bytes) + other_bytes_ + reserved_bytes_;
}

/// Reserves `bytes`, evicting the least recently used experts. Null: there is no room even without experts, and none
/// was evicted. 0 bytes: only evicts what is above the limit. If no expert can be evicted but others are being written,
/// waits for those; this cannot deadlock, since no caller holds a Room while it requests one.
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

Result<void> WeightCache::leave_room(uint64_t bytes) const {
  return leave_disk_room(folder_.files(), folder_.root(), limit_.stay_free_bytes,
                         {.kept_bytes = size_bytes(), .more_bytes = bytes});
}

/// Removes the file first: if the process dies before the record, the next run finds the file missing and records it.
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
  TRY(folder_.files().remove_file(final_path(file)));
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
  const TensorLocation place = places_[tensor];
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
