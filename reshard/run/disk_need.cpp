#include "reshard/run/disk_need.h"

#include <zstd.h>

#include <algorithm>
#include <set>

#include "format/compressed/frames.h"
#include "reshard/run/output_folder.h"

namespace dspack::reshard {
namespace {

/// Upper bound on a file's size in its final form.
uint64_t most_stored_bytes(const Plan& plan, const PlannedFile& file) {
  if (!plan.recipe.zstd_level) return file.size_bytes;
  const std::vector<uint64_t> cuts = format::frame_cuts(file.offsets, file.size_bytes);
  uint64_t bytes = format::seek_table_bytes(cuts.size() - 1);
  for (size_t i = 0; i + 1 < cuts.size(); ++i)
    bytes += ZSTD_compressBound(cuts[i + 1] - cuts[i]);
  return bytes;
}

/// Adds up unsealed files, and the copies that exist while they are sealed.
class Sum {
 public:
  explicit Sum(const Plan& plan) : plan_(plan) {}

  void add(const PlannedFile& file) {
    stored_ += most_stored_bytes(plan_, file);
    raw_ += file.size_bytes;
    largest_ = std::max(largest_, file.size_bytes);
  }

  /// A file that other parts also write: this part takes `bytes` of it and does not seal it.
  void add_piece(uint64_t bytes) { pieces_ += bytes; }

  [[nodiscard]] uint64_t bytes(const DiskUse& use) const {
    if (!plan_.recipe.zstd_level) return stored_ + pieces_;
    const uint64_t sealing = std::min<uint64_t>(use.jobs, plan_.shards.size());  // a job has one shard at a time
    return stored_ + pieces_ + std::min(raw_, sealing * (use.batch_bytes + largest_));
  }

 private:
  const Plan& plan_;
  uint64_t stored_ = 0, raw_ = 0, largest_ = 0, pieces_ = 0;
};

}  // namespace

uint64_t disk_bytes(const Plan& plan, const DiskUse& use) {
  Sum sum(plan);
  for (const PlannedFile& file : plan.files)
    sum.add(file);
  return sum.bytes(use);
}

Result<uint64_t> missing_bytes(const Plan& plan, const RunScope& scope, const std::function<bool(uint32_t)>& sealed,
                               const DiskUse& use, format::FileSystem& files) {
  const std::vector<uint64_t> own = bytes_per_file(plan, scope.shards);
  Sum sum(plan);
  uint64_t there = 0;
  const auto look_at = [&](const format::Path& path, uint64_t most_bytes) -> Result<void> {
    TRY_ASSIGN(const auto info, files.stat(path));
    if (info) there += std::min(info->allocated_bytes, most_bytes);
    return {};
  };
  for (uint32_t number = 0; number < plan.files.size(); ++number) {
    const PlannedFile& file = plan.files[number];
    const format::Path partial = partial_path(scope, file);
    if (own[number] == 0 || sealed(number)) continue;
    if (own[number] < file.size_bytes) {
      sum.add_piece(own[number]);
      TRY(look_at(partial, own[number]));
      continue;
    }
    sum.add(file);
    TRY(look_at(partial, file.size_bytes));
    if (plan.recipe.zstd_level) {
      TRY(look_at(format::Path(partial) += format::kCompressedSuffix, most_stored_bytes(plan, file)));
    }
    TRY(look_at(final_path(plan, scope, file), most_stored_bytes(plan, file)));  // renamed but not yet recorded
  }
  return sum.bytes(use) - std::min(sum.bytes(use), there);
}

Result<uint64_t> missing_files(const Plan& plan, const RunScope& scope, const std::function<bool(uint32_t)>& sealed,
                               const DiskUse& use, format::FileSystem& files) {
  const std::vector<uint64_t> own = bytes_per_file(plan, scope.shards);
  std::set<format::Path> folders;
  uint64_t count = 0;
  for (uint32_t number = 0; number < plan.files.size(); ++number) {
    if (own[number] == 0 || sealed(number)) continue;
    const format::Path partial = partial_path(scope, plan.files[number]);
    const format::Path final = final_path(plan, scope, plan.files[number]);
    TRY_ASSIGN(const auto begun, files.stat(partial));
    TRY_ASSIGN(const auto made, files.stat(final));
    if (!begun && !made) ++count;
    for (const format::Path& path : {partial, final}) {
      for (format::Path folder = path.parent_path(); folders.insert(folder).second && folder != scope.out;)
        folder = folder.parent_path();
    }
  }
  for (const format::Path& folder : folders) {
    TRY_ASSIGN(const auto there, files.stat(folder));
    if (!there) ++count;
  }
  if (!plan.recipe.zstd_level) return count;
  return count + std::min<uint64_t>(use.jobs, plan.files.size());  // raw and compressed forms coexist while sealing
}

}  // namespace dspack::reshard
