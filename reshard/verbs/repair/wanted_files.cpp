#include "reshard/verbs/repair/wanted_files.h"

#include <algorithm>

#include "format/base/check.h"
#include "reshard/run/output_folder.h"

namespace dspack::reshard {
namespace {

WantedFile wanted_file(const format::PackedFile& file, const format::Layout& layout, const format::Checkpoint& packed) {
  WantedFile wanted{.planned = {.path = file.path,
                                .part = file.part,
                                .layer = file.layer,
                                .experts = {},
                                .tensors = {},
                                .offsets = {},
                                .data_start = file.data_start,
                                .size_bytes = file.size_bytes},
                    .tensors = {},
                    .sha256 = file.sha256,
                    .is_compressed = file.zstd.has_value(),
                    .zstd = file.zstd};
  for (size_t slot = 0; slot < layout.tensors.size(); ++slot) {
    const format::TensorEntry* entry = packed.find(tensor_name(file, layout.tensors[slot]));
    DSPACK_CHECK(entry != nullptr, "the catalogue was made from this manifest");
    wanted.planned.tensors.push_back(static_cast<uint32_t>(entry - packed.tensors().data()));
    wanted.planned.offsets.push_back(file.data_start + layout.tensors[slot].data.begin);
    wanted.tensors.emplace_back(file.tensors[slot]);
  }
  return wanted;
}

}  // namespace

format::Path WantedFiles::part_path(uint32_t file) const {
  return part_folder(out) / files[file].planned.path;
}

format::Path WantedFiles::final_path(uint32_t file) const {
  format::Path path = out / files[file].planned.path;
  if (files[file].is_compressed) path += format::kCompressedSuffix;
  return path;
}

WantedFiles wanted_by_manifest(const format::Checkpoint& packed, const format::Path& out,
                               std::optional<int> zstd_level) {
  const format::Manifest& manifest = *packed.manifest();
  WantedFiles wanted{packed, out, zstd_level, {}};
  wanted.files.reserve(manifest.files.size());
  for (const format::PackedFile& file : manifest.files)
    wanted.files.push_back(wanted_file(file, manifest.layouts[file.layout], packed));
  return wanted;
}

WantedFiles wanted_by_journal(const Plan& plan, const JournalState& done, const format::Path& out) {
  WantedFiles wanted{plan.result, out, plan.recipe.zstd_level, {}};
  wanted.files.reserve(plan.files.size());
  for (const PlannedFile& file : plan.files) {
    wanted.files.push_back({.planned = file,
                            .tensors = decltype(WantedFile::tensors)(file.tensors.size()),
                            .is_compressed = plan.recipe.zstd_level.has_value()});
  }
  const auto want = [&](uint64_t shard, const std::vector<TensorDigests>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      if (copy.file != kNoFile) wanted.files[copy.file].tensors[copy.slot] = tensors[i].whole;
    }
  };
  for (const auto& [shard, record] : done.shards)
    want(shard, record.tensors);
  for (const auto& [shard, record] : done.begun)
    want(shard, record.tensors);
  for (const auto& [number, sealed] : done.files) {
    WantedFile& file = wanted.files[number];
    file.zstd = sealed.zstd;
    // Where the record of a shard is gone its tensors are made anew, and the file is partial until then.
    const bool complete = std::ranges::all_of(file.tensors, [](const auto& digest) { return digest.has_value(); });
    if (complete) file.sha256 = sealed.sha256;
  }
  return wanted;
}

}  // namespace dspack::reshard
