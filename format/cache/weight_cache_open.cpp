// What earlier processes have left in a cache: taken over as far as the journal and the files agree.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "format/base/checked.h"
#include "format/cache/weight_cache.h"

namespace dspack::format {

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

/// Experts that were being written when a process died: nothing claims them.
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

}  // namespace dspack::format
