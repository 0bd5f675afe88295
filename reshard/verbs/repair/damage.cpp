#include "reshard/verbs/repair/damage.h"

#include <algorithm>
#include <mutex>

#include "format/base/check.h"
#include "format/base/parallel.h"
#include "format/compressed/expanded_file.h"
#include "format/source/local_repository.h"
#include "reshard/run/output_folder.h"
#include "reshard/run/tensor_reader.h"
#include "reshard/verbs/verify.h"

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
    // If a shard's record is gone, its tensors are made again and the file is partial until then.
    const bool complete = std::ranges::all_of(file.tensors, [](const auto& digest) { return digest.has_value(); });
    if (complete) file.sha256 = sealed.sha256;
  }
  return wanted;
}

namespace {

using format::Path;

/// Checks one file at a time. Threads: thread-safe.
class Judge {
 public:
  Judge(const WantedFiles& wanted, Scrutiny scrutiny, format::FileSystem& files, format::Progress& progress)
      : wanted_(wanted), scrutiny_(scrutiny), files_(files), progress_(progress) {}

  /// nullopt: the file is intact, or nothing is known about it.
  Result<std::optional<FileDamage>> judge(uint32_t number, const std::stop_token& stop) const {
    const WantedFile& file = wanted_.files[number];
    const bool anything_known =
        std::ranges::any_of(file.tensors, [](const auto& digest) { return digest.has_value(); });
    if (!anything_known) return std::optional<FileDamage>();
    FileDamage damage{.file = number};
    TRY_ASSIGN(const bool whole, is_whole(number, damage.remains, stop));
    if (whole) return std::optional<FileDamage>();
    TRY(look_at_tensors(damage, stop));
    if (file.sha256 || !damage.slots.empty() || damage.remains == Remains::compressed)
      return std::optional(std::move(damage));
    // A partial file gets its header again when it is filled; a truncated one would not be filled.
    const Path path = damage.remains == Remains::partial ? wanted_.part_path(number) : wanted_.final_path(number);
    TRY_ASSIGN(const auto info, files_.stat(path));
    if (info && info->size_bytes == file.planned.size_bytes) return std::optional<FileDamage>();
    return std::optional(std::move(damage));
  }

 private:
  /// Determines the remains, and whether the file needs no further checks.
  Result<bool> is_whole(uint32_t number, Remains& remains, const std::stop_token& stop) const {
    const WantedFile& file = wanted_.files[number];
    TRY_ASSIGN(const auto final, files_.stat(wanted_.final_path(number)));
    TRY_ASSIGN(const auto part, files_.stat(wanted_.part_path(number)));
    const bool quick = scrutiny_ == Scrutiny::outside;
    const bool readable = !file.is_compressed || file.zstd.has_value();  // the layout of its frames is known
    if (final && final->is_regular && readable) {
      const uint64_t size_bytes = file.zstd ? file.zstd->size_bytes : file.planned.size_bytes;
      if (file.sha256 && final->size_bytes == size_bytes) {
        if (quick) return true;
        TRY_ASSIGN(const bool fits, has_digest(wanted_.final_path(number), file.zstd ? file.zstd->sha256 : *file.sha256,
                                               file.planned.size_bytes, stop));
        if (fits) return true;
      }
      // A link's target belongs to others: it is not mended; our own file replaces the link.
      if (!final->is_link) {
        remains = file.is_compressed ? Remains::compressed : Remains::raw_final;
        return false;
      }
    }
    if (!part || !part->is_regular || part->is_link) return false;
    remains = Remains::partial;
    return quick && !file.sha256 && part->size_bytes == file.planned.size_bytes;
  }

  /// `raw_bytes`: the file's share of the progress.
  Result<bool> has_digest(const Path& path, const format::Digest& digest, uint64_t raw_bytes,
                          const std::stop_token& stop) const {
    const auto read = digest_of_file(path, files_, stop);
    if (!read && !is_finding(read.error())) return read.error();
    progress_.advanced(raw_bytes);
    return read.has_value() && *read == digest;
  }

  Result<void> look_at_tensors(FileDamage& damage, const std::stop_token& stop) const {
    const WantedFile& file = wanted_.files[damage.file];
    auto opened = open_remains(wanted_, damage.file, damage.remains, files_);
    if (!opened && !is_finding(opened.error())) return opened.error();
    for (uint32_t slot = 0; slot < file.tensors.size(); ++slot) {
      if (!file.tensors[slot]) continue;
      bool fits = false;
      if (opened && *opened) {
        TRY_ASSIGN(fits, tensor_fits(**opened, wanted_.range(damage.file, slot), *file.tensors[slot], stop));
      }
      if (!fits) damage.slots.push_back(slot);
    }
    return {};
  }

  static Result<bool> tensor_fits(format::ByteSource& file, ByteRange range, const format::Digest& digest,
                                  const std::stop_token& stop) {
    if (range.end > file.size_bytes()) return false;
    const auto read = digest_of_range(file, range, stop);
    if (!read && !is_finding(read.error())) return read.error();
    return read.has_value() && *read == digest;
  }

  const WantedFiles& wanted_;
  Scrutiny scrutiny_;
  format::FileSystem& files_;
  format::Progress& progress_;
};

}  // namespace

Result<std::unique_ptr<format::ByteSource>> open_remains(const WantedFiles& wanted, uint32_t file, Remains remains,
                                                         format::FileSystem& files) {
  const WantedFile& wanted_file = wanted.files[file];
  switch (remains) {
    case Remains::none: return std::unique_ptr<format::ByteSource>();
    case Remains::partial: return format::open_local_source(files, wanted.part_path(file));
    case Remains::raw_final: return format::open_local_source(files, wanted.final_path(file));
    case Remains::compressed: break;
  }
  TRY_ASSIGN(auto stored, format::open_local_source(files, wanted.final_path(file)));
  const PlannedFile& planned = wanted_file.planned;
  TRY_ASSIGN(auto table,
             format::frame_table(format::frame_cuts(planned.offsets, planned.size_bytes), wanted_file.zstd.value()));
  auto form = std::make_shared<const format::CompressedFile>(
      format::CompressedFile{planned.size_bytes, wanted_file.zstd->size_bytes, std::move(table)});
  return format::make_expanded_source(std::move(stored), std::move(form), wanted.final_path(file).string());
}

Result<std::vector<FileDamage>> find_damage(const WantedFiles& wanted, Scrutiny scrutiny, unsigned jobs,
                                            format::FileSystem& files, format::Progress& progress,
                                            const std::stop_token& stop) {
  uint64_t bytes = 0;
  for (const WantedFile& file : wanted.files)
    bytes += file.sha256 && scrutiny == Scrutiny::bytes ? file.planned.size_bytes : 0;
  progress.started("checking", bytes, wanted.files.size());
  const Judge judge(wanted, scrutiny, files, progress);
  std::vector<std::optional<FileDamage>> judged(wanted.files.size());
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(judged[i], judge.judge(static_cast<uint32_t>(i), stop_one));
    progress.item_done();
    return {};
  };
  TRY(run_jobs(judged.size(), jobs, one, stop));
  progress.finished();
  std::vector<FileDamage> damage;
  for (std::optional<FileDamage>& file : judged) {
    if (file) damage.push_back(std::move(*file));
  }
  return damage;
}

}  // namespace dspack::reshard
