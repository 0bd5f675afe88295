#include "reshard/verbs/repair/mender.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "format/base/check.h"
#include "format/source/local_repository.h"
#include "reshard/run/compress.h"

namespace dspack::reshard {
namespace {

using format::OpenMode;
using format::Path;

Result<format::Digest> digest_of(const Path& path, format::FileSystem& files) {
  TRY_ASSIGN(const auto file, format::open_local_source(files, path));
  format::Sha256 hash;
  const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    hash.update(bytes);
    return {};
  };
  TRY(file->stream({0, file->size_bytes()}, sink, {}));
  return hash.finish();
}

Error made_otherwise(const Path& path, std::string_view what) {
  return {ErrorKind::unsupported,
          fmt::format("{}: its tensors are whole again, but {}, as another version makes it; copy this file from "
                      "another copy of the packed repository, or name one with --source",
                      path.string(), what)};
}

}  // namespace

Mender::Mender(const WantedFiles& wanted, const std::vector<FileDamage>& damage, format::FileSystem& files,
               DurableFolders& folders)
    : wanted_(wanted), files_(files), folders_(folders), states_(wanted.files.size()) {
  for (const FileDamage& file : damage) {
    states_[file.file] = std::make_unique<State>();
    states_[file.file]->damage = file;
    states_[file.file]->missing = file.slots.size();
  }
}

Result<TensorTarget> Mender::open(const Copy& copy, uint64_t /*done*/) {
  State& state = *states_[copy.file];
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
    State& state = *states_[copy.file];
    const std::lock_guard lock(state.mutex);
    if (--state.missing == 0) touched.insert(copy.file);
  }
  for (const uint32_t file : touched)
    TRY(finish(*states_[file]));
  return {};
}

Result<void> Mender::finish_unread(uint32_t file) {
  State& state = *states_[file];
  DSPACK_CHECK(state.missing == 0, "tensors of this file are missing");
  {
    const std::lock_guard lock(state.mutex);
    TRY(prepare(state));
  }
  return finish(state);
}

/// Puts what is sound where the rest is to be written.
Result<void> Mender::prepare(State& state) {
  if (state.prepared) return {};
  const uint32_t number = state.damage.file;
  const PlannedFile& planned = wanted_.files[number].planned;
  const Path part = wanted_.part_path(number);
  TRY(folders_.make(part.parent_path()));
  if (state.damage.remains == Remains::raw_final) TRY(files_.rename(wanted_.final_path(number), part));
  const bool anew = state.damage.remains == Remains::none || state.damage.remains == Remains::compressed;
  if (anew) TRY(files_.remove_tree(part));
  TRY_ASSIGN(const auto file, files_.open_write(part, OpenMode::keep));
  TRY(file->resize(planned.size_bytes));
  if (state.damage.remains == Remains::compressed) TRY(expand_sound(state, *file));
  const std::string header = planned_header(planned, wanted_.catalogue);
  if (header.size() != planned.data_start) return made_otherwise(wanted_.final_path(number), "its header is another");
  TRY(file->write(0, format::as_bytes(header)));
  state.prepared = true;
  return {};
}

Result<void> Mender::expand_sound(const State& state, format::WriteFile& part) const {
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

Result<void> Mender::finish(State& state) {
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
  TRY_ASSIGN(const format::Digest raw, digest_of(part, files_));
  if (raw != *wanted.sha256) return made_otherwise(final, "its header is another");
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
  return wanted.zstd ? files_.remove_tree(part) : Result<void>();
}

}  // namespace dspack::reshard
