#include "reshard/packed_writer.h"

#include "reshard/compress.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

using format::Digest;
using format::OpenMode;
using format::Path;

// What a file's digest lacks is read back in pieces of this size: one such buffer a job.
constexpr uint64_t kReadBackBytes = 1 << 20;

}  // namespace

PackedWriter::PackedWriter(const Plan& plan, const RunScope& scope, format::FileSystem& files, Journal& journal,
                           const DiskUse& use)
    : plan_(plan), scope_(scope), files_(files), journal_(journal), use_(use), folders_(files, scope.out) {
  for (const PlannedFile& file : plan.files) {
    states_.push_back(std::make_unique<State>());
    states_.back()->tensors.resize(file.tensors.size());
    states_.back()->unknown = file.tensors.size();
  }
}

Path PackedWriter::part_path(uint32_t file) const {
  return partial_path(scope_, plan_.files[file]);
}

Path PackedWriter::final_path(uint32_t file) const {
  return reshard::final_path(plan_, scope_, plan_.files[file]);
}

void PackedWriter::know(const Copy& copy, const TensorDigests& digests) {
  if (copy.file == kNoFile) return;
  State& state = *states_[copy.file];
  if (!state.tensors[copy.slot]) --state.unknown;
  state.tensors[copy.slot] = digests;
}

Result<void> PackedWriter::resume(const JournalState& state) {
  for (const auto& [shard, done] : state.shards) {
    for (size_t i = 0; i < done.tensors.size(); ++i)
      know(plan_.shards[shard][i], done.tensors[i]);
  }
  const std::vector<uint64_t> own = bytes_per_file(plan_, scope_.shards);
  std::vector<uint32_t> complete;
  for (uint32_t file = 0; file < states_.size(); ++file) {
    if (own[file] == 0) continue;  // another part's
    TRY(take_back(file, state));
    State& entry = *states_[file];
    if (entry.sealed || entry.unknown != 0) continue;
    TRY(prepare(file, entry));  // its header again, which no digest covers
    TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
    TRY(part->sync());
    complete.push_back(file);
  }
  return seal(complete);
}

/// Finds a file of an earlier run where the journal says it is, or makes it partial again.
Result<void> PackedWriter::take_back(uint32_t file, const JournalState& journalled) {
  State& state = *states_[file];
  TRY_ASSIGN(const auto info, files_.stat(final_path(file)));
  const auto record = journalled.files.find(file);
  const bool complete = state.unknown == 0;
  const bool recorded = record != journalled.files.end();
  const uint64_t size_bytes =
      recorded && record->second.zstd ? record->second.zstd->size_bytes : plan_.files[file].size_bytes;
  if (recorded && complete && info && info->size_bytes == size_bytes) {
    state.sealed = record->second;
    // Of a compressed file the raw one goes last.
    return plan_.recipe.zstd_level ? files_.remove_tree(part_path(file)) : Result<void>();
  }
  if (info && !plan_.recipe.zstd_level) {  // renamed, but not recorded, or not as it was
    TRY(folders_.make(part_path(file).parent_path()));
    TRY(files_.rename(final_path(file), part_path(file)));
  }
  if (!complete) return {};
  TRY_ASSIGN(const auto part, files_.stat(part_path(file)));
  if (part) return {};
  return Error{ErrorKind::conflict, fmt::format("{}: was made by an earlier run and is gone; reshard repair {} fetches "
                                                "it again and goes on",
                                                final_path(file).string(), scope_.out.string())};
}

Result<void> PackedWriter::prepare(uint32_t file, State& state) {
  if (state.prepared) return {};
  TRY(folders_.make(part_path(file).parent_path()));
  TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
  TRY(part->resize(plan_.files[file].size_bytes));
  const std::string header = planned_header(plan_.files[file], plan_.result);
  TRY(part->write(0, format::as_bytes(header)));
  state.hash.emplace().update(format::as_bytes(header));
  state.hashed_bytes = header.size();
  state.prepared = true;
  return {};
}

Result<TensorTarget> PackedWriter::open(const Copy& copy) {
  if (copy.file == kNoFile) return TensorTarget{};
  State& state = *states_[copy.file];
  const std::lock_guard lock(state.mutex);
  TRY(prepare(copy.file, state));
  TensorTarget target;
  TRY_ASSIGN(target.file, files_.open_write(part_path(copy.file), OpenMode::keep));
  if (!state.hash_in_use && state.hashed_bytes == copy.offset) {
    state.hash_in_use = true;
    target.file_hash = &*state.hash;
  }
  return target;
}

void PackedWriter::close(const Copy& copy, const TensorTarget& target) {
  if (target.file_hash == nullptr) return;
  State& state = *states_[copy.file];
  const std::lock_guard lock(state.mutex);
  state.hashed_bytes = copy.offset + copy.bytes;
  state.hash_in_use = false;
}

Result<void> PackedWriter::shard_done(const ShardDone& record) {
  const std::vector<Copy>& copies = plan_.shards[record.shard];
  std::set<uint32_t> touched;
  std::set<Path> folders;
  for (const Copy& copy : copies) {
    if (copy.file != kNoFile) touched.insert(copy.file);
  }
  for (const uint32_t file : touched) {
    TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
    TRY(part->sync());
    folders.insert(part_path(file).parent_path());
  }
  for (const Path& folder : folders)
    TRY(files_.sync_folder(folder));
  TRY(journal_.append(record));

  // A file is complete when the shards of all its tensors are recorded; whoever records the last one seals it.
  std::vector<uint32_t> complete;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].file == kNoFile) continue;
    State& state = *states_[copies[i].file];
    const std::lock_guard lock(state.mutex);
    know(copies[i], record.tensors[i]);
    if (state.unknown == 0) complete.push_back(copies[i].file);
  }
  return seal(complete);
}

Result<Digest> PackedWriter::finish_digest(uint32_t file, State& state) const {
  const PlannedFile& planned = plan_.files[file];
  TRY_ASSIGN(const auto part, files_.open_read(part_path(file)));
  if (part->size_bytes() != planned.size_bytes) {
    return Error{ErrorKind::corrupt, fmt::format("{}: has {} bytes instead of {}", part_path(file).string(),
                                                 part->size_bytes(), planned.size_bytes)};
  }
  std::vector<std::byte> buffer(std::min(kReadBackBytes, planned.size_bytes - state.hashed_bytes));
  for (size_t slot = 0; slot < planned.tensors.size(); ++slot) {
    if (planned.offsets[slot] < state.hashed_bytes) continue;
    const uint64_t end = slot + 1 < planned.tensors.size() ? planned.offsets[slot + 1] : planned.size_bytes;
    format::Sha256 tensor;
    for (uint64_t at = planned.offsets[slot]; at < end;) {
      const std::span<std::byte> piece(buffer.data(), std::min<uint64_t>(buffer.size(), end - at));
      TRY(part->read(at, piece));
      update_together(std::array{&*state.hash, &tensor}, piece);
      at += piece.size();
    }
    if (tensor.finish() == state.tensors[slot]->whole) continue;
    return Error{
        ErrorKind::corrupt,
        fmt::format("{}: tensor \"{}\" reads back differently from what was written; is the disk sound? "
                    "reshard repair {} fetches it again and goes on",
                    part_path(file).string(), plan_.result.tensors()[planned.tensors[slot]].name, scope_.out.string())};
  }
  return state.hash->finish();
}

/// Compressed files in batches: until its record is durable a file lies there raw as well.
Result<void> PackedWriter::seal(std::span<const uint32_t> complete) {
  while (!complete.empty()) {
    size_t count = plan_.recipe.zstd_level ? 1 : complete.size();
    for (uint64_t bytes = 0; count < complete.size(); ++count) {
      bytes += plan_.files[complete[count - 1]].size_bytes;
      if (bytes >= use_.batch_bytes) break;
    }
    TRY(seal_batch(complete.first(count)));
    complete = complete.subspan(count);
  }
  return {};
}

Result<void> PackedWriter::seal_batch(std::span<const uint32_t> complete) {
  std::vector<FileSealed> sealed;
  std::set<Path> folders;
  for (const uint32_t file : complete) {
    State& state = *states_[file];
    const std::lock_guard lock(state.mutex);
    TRY_ASSIGN(const Digest digest, finish_digest(file, state));
    TRY(folders_.make(final_path(file).parent_path()));
    std::optional<format::CompressedForm> zstd;
    Path made = part_path(file);
    if (plan_.recipe.zstd_level) {
      made += format::kCompressedSuffix;
      const PlannedFile& planned = plan_.files[file];
      TRY_ASSIGN(zstd,
                 compress_file(files_, part_path(file), made, format::frame_cuts(planned.offsets, planned.size_bytes),
                               *plan_.recipe.zstd_level));
    }
    TRY(files_.rename(made, final_path(file)));
    folders.insert(final_path(file).parent_path());
    state.hash.reset();
    sealed.push_back({.file = file, .sha256 = digest, .zstd = std::move(zstd)});
  }
  for (const Path& folder : folders)
    TRY(files_.sync_folder(folder));
  TRY(journal_.append(sealed));
  for (size_t i = 0; i < sealed.size(); ++i) {
    if (plan_.recipe.zstd_level) TRY(files_.remove_tree(part_path(complete[i])));
    State& state = *states_[complete[i]];
    const std::lock_guard lock(state.mutex);
    state.sealed = std::move(sealed[i]);
  }
  return {};
}

Result<uint64_t> PackedWriter::missing_bytes() const {
  const auto sealed = [this](uint32_t file) {
    const std::lock_guard lock(states_[file]->mutex);
    return states_[file]->sealed.has_value();
  };
  return reshard::missing_bytes(plan_, scope_, sealed, {.jobs = 0, .batch_bytes = 0}, files_);
}

std::vector<FileDigests> PackedWriter::digests() const {
  std::vector<FileDigests> all;
  for (const auto& state : states_) {
    FileDigests file{.sha256 = state->sealed.value().sha256, .zstd = state->sealed->zstd, .tensors = {}};
    for (const std::optional<TensorDigests>& tensor : state->tensors)
      file.tensors.push_back(tensor.value());
    all.push_back(std::move(file));
  }
  return all;
}

}  // namespace dspack::reshard
