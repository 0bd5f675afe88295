#include "format/cache/weight_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "format/base/checked.h"

namespace dspack::format {
namespace {

// Beside the connections' sockets and the store's files, below the usual limit of 1,024.
constexpr unsigned kMaxReaders = 256;
// Of an ordinary origin; a packed one says how long its blocks are.
constexpr uint64_t kBlockBytes = 1 << 20;

bool may_be_a_copy(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("shared_head.head.weight");
}

const RowBlocks* declared_blocks(const Checkpoint& catalogue, uint32_t tensor) {
  const TensorEntry& entry = catalogue.tensors()[tensor];
  const PackedFile& file = catalogue.manifest()->files[entry.file];
  const Layout& layout = catalogue.manifest()->layouts[file.layout];
  const auto begin = [&](const RowBlocks& blocks) {
    return file.data_start + layout.tensors[blocks.tensor].data.begin;
  };
  const auto found = std::ranges::lower_bound(file.row_blocks, entry.range.begin, {}, begin);
  if (found == file.row_blocks.end() || begin(*found) != entry.range.begin) return nullptr;
  return layout.tensors[found->tensor].data.size() == entry.range.size() ? &*found : nullptr;
}

}  // namespace

uint64_t rows_per_cache_block(const Checkpoint& catalogue, uint32_t tensor) {
  const TensorEntry& entry = catalogue.tensors()[tensor];
  if (entry.shape.size() != 2 || entry.shape[0] == 0 || entry.range.size() % entry.shape[0] != 0) return 0;
  if (catalogue.manifest()) {
    const RowBlocks* blocks = declared_blocks(catalogue, tensor);
    return blocks == nullptr ? 0 : blocks->rows_per_block;
  }
  const uint64_t row_bytes = entry.range.size() / entry.shape[0];
  if (row_bytes == 0 || !may_be_a_copy(entry.name)) return 0;
  return std::max<uint64_t>(1, kBlockBytes / row_bytes);
}

std::optional<Digest> declared_block(const Checkpoint& catalogue, uint32_t tensor, uint64_t block) {
  const RowBlocks* blocks = catalogue.manifest() ? declared_blocks(catalogue, tensor) : nullptr;
  if (blocks == nullptr || block >= blocks->digests.size()) return std::nullopt;
  return blocks->digests[block];
}

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
  // Only a hint for what to remove first: a run that cannot leave it has lost nothing.
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
  const Place place = places_[tensor];
  const std::lock_guard lock(mutex_);
  return files_[place.file].tensors.contains(place.slot);
}

bool WeightCache::has_block(uint32_t tensor, uint64_t block) const {
  return recorded_block(tensor, block).has_value();
}

std::optional<Digest> WeightCache::recorded(uint32_t tensor) const {
  const Place place = places_[tensor];
  const std::lock_guard lock(mutex_);
  const File& file = files_[place.file];
  if (file.whole && !file.whole->tensors.empty()) return file.whole->tensors[place.slot];
  if (!file.first_fetch.empty()) return file.first_fetch[place.slot];
  const auto found = file.tensors.find(place.slot);
  return found == file.tensors.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Digest> WeightCache::recorded_block(uint32_t tensor, uint64_t block) const {
  const Place place = places_[tensor];
  const std::lock_guard lock(mutex_);
  const auto blocks = files_[place.file].blocks.find(place.slot);
  if (blocks == files_[place.file].blocks.end()) return std::nullopt;
  const auto found = blocks->second.find(block);
  return found == blocks->second.end() ? std::nullopt : std::optional(found->second);
}

Result<void> WeightCache::read(uint32_t tensor, uint64_t offset, std::span<std::byte> into) {
  const Place place = places_[tensor];
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
  const Place place = places_[tensor];
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
      const Place place = places_[tensor];
      if (files_[place.file].tensors.insert_or_assign(place.slot, digest).second)
        whole_bytes_ += catalogue_.tensors()[tensor].range.size();
    }
  }
  for (const auto& [file, kept] : parts)
    TRY(move_if_whole(file));
  return {};
}

Result<bool> WeightCache::keep_blocks(uint32_t tensor, const std::map<uint64_t, Block>& blocks) {
  const Place place = places_[tensor];
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

/// A file that has all its tensors takes its final name; whoever is killed before leaves that to the next run.
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
  TRY_ASSIGN(const auto room, make_room(planned.size_bytes));
  if (!room) return false;
  const Path part = folder_.part_path(planned.path);
  auto kept = write_expert(file, expert, tensors);
  if (!kept) {
    (void)folder_.files().remove_tree(part);  // what was begun takes space that is wanted now
    return kept.error();
  }
  if (auto same = compare_with_first(file, kept->tensors); !same) {
    (void)folder_.files().remove_tree(part);
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
  if (catalogue_.manifest()) return;  // which says what they must be
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

// What there is ------------------------------------------------------------------------------------------------------

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

std::optional<Digest> WeightCache::file_digest(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  return files_[file].whole ? std::optional(files_[file].whole->sha256) : std::nullopt;
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

}  // namespace dspack::format
