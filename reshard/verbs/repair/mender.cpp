#include "reshard/verbs/repair/mender.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "format/base/check.h"
#include "reshard/run/compress.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {
namespace {

using format::TensorEntry;

/// The missing tensors by name; each is removed when its copy is found.
class Missing {
 public:
  Missing(const WantedFiles& wanted, const std::vector<FileDamage>& damage) : wanted_(wanted) {
    for (const FileDamage& file : damage) {
      for (const uint32_t slot : file.slots)
        by_name_.emplace(wanted.tensor(file.file, slot).name, TensorLocation{file.file, slot});
    }
  }

  /// The copy that restores the tensor, if it is missing and `from` describes the same tensor.
  std::optional<Copy> way_of(const TensorEntry& from, Copy copy) {
    const auto found = by_name_.find(from.name);
    if (found == by_name_.end()) return std::nullopt;
    const auto [file, slot] = found->second;
    const TensorEntry& tensor = wanted_.tensor(file, slot);
    if (tensor.dtype != from.dtype || tensor.shape != from.shape) return std::nullopt;
    const ByteRange range = wanted_.range(file, slot);
    copy.file = file;
    copy.slot = slot;
    copy.offset = range.begin;
    copy.bytes = range.size();
    by_name_.erase(found);
    return copy;
  }
  [[nodiscard]] std::optional<format::Digest> digest(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : wanted_.files[found->second.file].tensors[found->second.slot];
  }

  [[nodiscard]] Result<void> check_none_left(const std::string& place) const {
    if (by_name_.empty()) return {};
    std::string_view first = by_name_.begin()->first;
    for (const auto& [name, unused] : by_name_)
      first = std::min(first, name);
    const std::string more = by_name_.size() == 1 ? "" : fmt::format(" (and {} more)", by_name_.size() - 1);
    return Error{ErrorKind::not_found,
                 fmt::format("{}: does not hold tensor \"{}\"{} as {} has it; name with --source what the repository "
                             "was packed from, or another copy of it",
                             place, first, more, wanted_.out.string())};
  }

 private:
  struct TensorLocation {
    uint32_t file;
    uint32_t slot;
  };
  const WantedFiles& wanted_;
  std::unordered_map<std::string_view, TensorLocation> by_name_;
};

Plan plan_of(std::vector<std::vector<Copy>> shards) {
  Plan plan;
  plan.shards = std::move(shards);
  for (std::vector<Copy>& copies : plan.shards) {
    sort_copies(copies);
    plan.reads.push_back({.whole = false, .ranges = wanted_ranges(copies)});
    plan.source_bytes += plan.reads.back().bytes();
  }
  return plan;
}

}  // namespace

Result<Plan> ways_from_source(const Plan& full, const WantedFiles& wanted, const std::vector<FileDamage>& damage,
                              const std::string& place) {
  Missing missing(wanted, damage);
  std::vector<std::vector<Copy>> shards(full.shards.size());
  for (size_t shard = 0; shard < full.shards.size(); ++shard) {
    for (const Copy& copy : full.shards[shard]) {
      if (copy.file == kNoFile) continue;
      const TensorEntry& made = full.result.tensors()[full.files[copy.file].tensors[copy.slot]];
      if (const auto way = missing.way_of(made, copy)) shards[shard].push_back(*way);
    }
  }
  TRY(missing.check_none_left(place));
  return plan_of(std::move(shards));
}

Result<Plan> ways_from_packed(const format::Checkpoint& source, const WantedFiles& wanted,
                              const std::vector<FileDamage>& damage, const std::string& place) {
  Missing missing(wanted, damage);
  std::vector<std::vector<Copy>> shards(source.files().size());
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    const TensorEntry& tensor = source.tensors()[i];
    if (!tensor.digest || missing.digest(tensor.name) != tensor.digest) continue;
    if (const auto way = missing.way_of(tensor, {.tensor = i, .source = tensor.range}))
      shards[tensor.file].push_back(*way);
  }
  TRY(missing.check_none_left(place));
  return plan_of(std::move(shards));
}

namespace {

using format::OpenMode;
using format::Path;

Error made_otherwise(const Path& path, std::string_view what) {
  return {ErrorKind::unsupported,
          fmt::format("{}: its tensors are restored, but {}, as another version makes it; copy this file from another "
                      "copy of the packed repository, or give one with --source",
                      path.string(), what)};
}

}  // namespace

Mender::Mender(const WantedFiles& wanted, const std::vector<FileDamage>& damage, format::FileSystem& files,
               DurableFolders& folders)
    : wanted_(wanted), files_(files), folders_(folders), states_(wanted.files.size()) {
  for (const FileDamage& file : damage) {
    states_[file.file] = std::make_unique<FileRepair>();
    states_[file.file]->damage = file;
    states_[file.file]->missing = file.slots.size();
  }
}

Result<TensorTarget> Mender::open(const Copy& copy, uint64_t /*done*/) {
  FileRepair& state = *states_[copy.file];
  const std::lock_guard lock(state.mutex);
  TRY(prepare(state));
  TensorTarget target;
  TRY_ASSIGN(target.file, files_.open_write(wanted_.part_path(copy.file), OpenMode::keep));
  return target;
}

Result<void> Mender::shard_done(const std::vector<Copy>& copies, const ShardDone& record, const std::string& place) {
  std::set<uint32_t> touched;
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& copy = copies[i];
    if (record.tensors[i].whole != wanted_.files[copy.file].tensors[copy.slot]) {
      return Error{
          ErrorKind::corrupt,
          fmt::format("{}: tensor \"{}\" is not the one that {} was made from (its digest differs): another "
                      "checkpoint, or damaged on the way",
                      place, wanted_.tensor(copy.file, copy.slot).name, wanted_.final_path(copy.file).string())};
    }
  }
  for (const Copy& copy : copies) {
    FileRepair& state = *states_[copy.file];
    const std::lock_guard lock(state.mutex);
    if (--state.missing == 0) touched.insert(copy.file);
  }
  for (const uint32_t file : touched)
    TRY(finish(*states_[file]));
  return {};
}

Result<void> Mender::finish_unread(uint32_t file) {
  FileRepair& state = *states_[file];
  DSPACK_CHECK(state.missing == 0, "tensors of this file are missing");
  {
    const std::lock_guard lock(state.mutex);
    TRY(prepare(state));
  }
  return finish(state);
}

/// Moves or expands the intact tensors to the partial file that takes the fetched ones.
Result<void> Mender::prepare(FileRepair& state) {
  if (state.prepared) return {};
  const uint32_t number = state.damage.file;
  const PlannedFile& planned = wanted_.files[number].planned;
  const Path part = wanted_.part_path(number);
  TRY(folders_.make(part.parent_path()));
  if (state.damage.remains == Remains::raw_final) TRY(files_.rename(wanted_.final_path(number), part));
  const bool anew = state.damage.remains == Remains::none || state.damage.remains == Remains::compressed;
  if (anew) TRY(files_.remove_file(part));
  TRY_ASSIGN(const auto file, files_.open_write(part, OpenMode::keep));
  TRY(file->resize(planned.size_bytes));
  if (state.damage.remains == Remains::compressed) TRY(expand_sound(state, *file));
  const std::string header = planned_header(planned, wanted_.catalogue);
  if (header.size() != planned.data_start) return made_otherwise(wanted_.final_path(number), "its header differs");
  TRY(file->write(0, format::as_bytes(header)));
  state.prepared = true;
  return {};
}

Result<void> Mender::expand_sound(const FileRepair& state, format::WriteFile& part) const {
  const uint32_t number = state.damage.file;
  TRY_ASSIGN(const auto from, open_remains(wanted_, number, state.damage.remains, files_));
  for (uint32_t slot = 0; slot < wanted_.files[number].tensors.size(); ++slot) {
    const bool is_sound = wanted_.files[number].tensors[slot] && !std::ranges::binary_search(state.damage.slots, slot);
    if (!is_sound) continue;
    const ByteRange range = wanted_.range(number, slot);
    uint64_t at = range.begin;
    const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
      TRY(part.write(at, bytes));
      at += bytes.size();
      return {};
    };
    TRY(from->stream(range, sink, {}));
  }
  return {};
}

Result<void> Mender::finish(FileRepair& state) {
  const uint32_t number = state.damage.file;
  const Path part = wanted_.part_path(number);
  {
    TRY_ASSIGN(const auto file, files_.open_write(part, OpenMode::keep));
    TRY(file->sync());
  }
  if (!wanted_.files[number].sha256) return files_.sync_folder(part.parent_path());
  return seal(number);
}

Result<void> Mender::seal(uint32_t number) {
  const WantedFile& wanted = wanted_.files[number];
  const Path part = wanted_.part_path(number);
  const Path final = wanted_.final_path(number);
  TRY_ASSIGN(const format::Digest raw, digest_of_file(part, files_, {}));
  if (raw != *wanted.sha256) return made_otherwise(final, "its header differs");
  Path made = part;
  if (wanted.zstd) {
    made += format::kCompressedSuffix;
    if (!wanted_.zstd_level) return made_otherwise(final, "the recipe does not say how they are compressed");
    const auto cuts = format::frame_cuts(wanted.planned.offsets, wanted.planned.size_bytes);
    TRY_ASSIGN(const format::CompressedForm form, compress_file(files_, part, made, cuts, *wanted_.zstd_level));
    if (form.sha256 != wanted.zstd->sha256) return made_otherwise(final, "zstd compresses them to other bytes");
  }
  TRY(folders_.make(final.parent_path()));
  TRY(files_.rename(made, final));
  TRY(files_.sync_folder(final.parent_path()));
  return wanted.zstd ? files_.remove_file(part) : Result<void>();
}

}  // namespace dspack::reshard
