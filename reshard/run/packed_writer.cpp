#include "reshard/run/packed_writer.h"

#include "reshard/run/compress.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

using format::Digest;
using format::OpenMode;
using format::Path;

// The digest of a shorter beginning is not recorded: the next run reads the bytes back, and so detects damage since.
constexpr uint64_t kRecordedHashBytes = 64ULL << 20;
// A shard with at most this fraction (1/n) of the holding room for a file does not wait for its turn there.
constexpr uint64_t kSmallShare = 16;

}  // namespace

PackedWriter::PackedWriter(const Plan& plan, const RunScope& scope, format::FileSystem& files, Journal& journal,
                           const WriterLimits& limits)
    : plan_(plan),
      scope_(scope),
      files_(files),
      journal_(journal),
      use_(limits.disk),
      folders_(files, scope.out),
      room_(limits.held_bytes),
      turns_(plan, scope, limits.held_bytes / kSmallShare) {
  const std::vector<uint64_t> own = bytes_per_file(plan, scope.shards);
  for (size_t file = 0; file < plan.files.size(); ++file) {
    states_.push_back(std::make_unique<FileState>(plan.files[file], plan.result, room_));
    states_.back()->is_own = own[file] == plan.files[file].size_bytes;
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
  FileState& state = *states_[copy.file];
  if (!state.tensors[copy.slot]) --state.unknown;
  state.tensors[copy.slot] = digests;
}

/// Marks tensors that an earlier run has written.
void PackedWriter::find(uint64_t shard, const std::vector<TensorDigests>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Copy& copy = plan_.shards[shard][i];
    if (copy.file == kNoFile) continue;
    turns_.given(copy);
    states_[copy.file]->digest.found(copy.slot, tensors[i].whole);
    states_[copy.file]->recorded[copy.slot] = true;
    states_[copy.file]->is_begun = true;
  }
}

/// Starts each file's digest from the longest recorded beginning whose bytes are recorded too.
void PackedWriter::begin_digests(const JournalState& journalled) {
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> begun;  // file and slot -> bytes
  for (const auto& [shard, record] : journalled.begun) {
    for (size_t i = 0; i < record.begun.size(); ++i) {
      const Copy& copy = plan_.shards[shard][record.tensors.size() + i];
      if (copy.file == kNoFile) continue;
      begun[{copy.file, copy.slot}] = record.at - copy.source.begin;
      states_[copy.file]->is_begun = true;
    }
  }
  std::map<uint64_t, const format::Sha256State*> longest;
  for (const FileBegun& recorded : journalled.file_hashes) {
    const PlannedFile& file = plan_.files[recorded.file];
    const FileState& state = *states_[recorded.file];
    uint32_t slot = 0;
    uint64_t at = file.data_start;
    for (; slot < file.tensors.size() && state.digest.has(slot) && at < recorded.hash.bytes; ++slot)
      at = slot + 1 < file.tensors.size() ? file.offsets[slot + 1] : file.size_bytes;
    const auto open = begun.find({static_cast<uint32_t>(recorded.file), slot});
    if (at < recorded.hash.bytes && open != begun.end()) at += open->second;
    const format::Sha256State*& best = longest[recorded.file];
    if (at == recorded.hash.bytes && (best == nullptr || best->bytes < at)) best = &recorded.hash;
  }
  for (const auto& [file, hash] : longest) {
    if (hash != nullptr && states_[file]->is_own) states_[file]->digest.begin(*hash);
  }
}

Result<void> PackedWriter::resume(const JournalState& state) {
  for (const auto& [shard, done] : state.shards) {
    find(shard, done.tensors);
    for (size_t i = 0; i < done.tensors.size(); ++i)
      know(plan_.shards[shard][i], done.tensors[i]);
  }
  for (const auto& [shard, record] : state.begun)
    find(shard, record.tensors);
  begin_digests(state);
  const std::vector<uint64_t> own = bytes_per_file(plan_, scope_.shards);
  std::vector<uint32_t> complete;
  for (uint32_t file = 0; file < states_.size(); ++file) {
    if (own[file] == 0) continue;  // belongs to another part
    TRY(take_back(file, state));
    FileState& entry = *states_[file];
    if (entry.sealed || entry.unknown != 0) continue;
    complete.push_back(file);
  }
  return seal(complete);
}

/// Accepts a sealed file of an earlier run if it matches its record; otherwise makes it partial again.
Result<void> PackedWriter::take_back(uint32_t file, const JournalState& journalled) {
  FileState& state = *states_[file];
  TRY_ASSIGN(const auto info, files_.stat(final_path(file)));
  const auto record = journalled.files.find(file);
  const bool complete = state.unknown == 0;
  const bool recorded = record != journalled.files.end();
  const uint64_t size_bytes =
      recorded && record->second.zstd ? record->second.zstd->size_bytes : plan_.files[file].size_bytes;
  if (recorded && complete && info && info->size_bytes == size_bytes) {
    state.sealed = record->second;
    // The raw form of a compressed file is removed last, so it may still exist.
    return plan_.recipe.zstd_level ? files_.remove_file(part_path(file)) : Result<void>();
  }
  if (info && !plan_.recipe.zstd_level) {  // renamed but not recorded, or changed since
    TRY(folders_.make(part_path(file).parent_path()));
    TRY(files_.rename(final_path(file), part_path(file)));
  }
  if (!state.is_begun) return {};
  TRY_ASSIGN(const auto part, files_.stat(part_path(file)));
  if (part && part->size_bytes == plan_.files[file].size_bytes) return {};
  return Error{
      ErrorKind::conflict,
      fmt::format("{}: was {} by an earlier run and is {}; reshard repair {} fetches it again and resumes",
                  final_path(file).string(), complete ? "made" : "begun", part ? "cut" : "gone", scope_.out.string())};
}

Result<void> PackedWriter::prepare(uint32_t file, FileState& state) {
  if (state.prepared) return {};
  TRY(folders_.make(part_path(file).parent_path()));
  TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
  TRY(part->resize(plan_.files[file].size_bytes));
  const std::string header = planned_header(plan_.files[file], plan_.result);
  TRY(part->write(0, format::as_bytes(header)));
  if (!state.digest.is_begun()) state.digest.begin(header);
  state.prepared = true;
  return {};
}

OpenWritten PackedWriter::open_written(uint32_t file) const {
  return [this, file]() -> Result<std::unique_ptr<format::ReadFile>> {
    TRY_ASSIGN(auto part, files_.open_read(part_path(file)));
    const uint64_t size_bytes = plan_.files[file].size_bytes;
    if (part->size_bytes() == size_bytes) return part;
    return Error{ErrorKind::corrupt, fmt::format("has {} bytes instead of {}", part->size_bytes(), size_bytes)};
  };
}

/// Names the file if the disk has returned other bytes than were written.
Error PackedWriter::damaged(uint32_t file, const Error& error) const {
  if (error.kind != ErrorKind::corrupt) return error;
  return {ErrorKind::corrupt, fmt::format("{}: {}; check the disk. reshard repair {} fetches it again and resumes",
                                          part_path(file).string(), error.message, scope_.out.string())};
}

Result<TensorTarget> PackedWriter::open(const Copy& copy, uint64_t done) {
  if (copy.file == kNoFile) return TensorTarget{};
  FileState& state = *states_[copy.file];
  const std::lock_guard lock(state.mutex);
  TRY(prepare(copy.file, state));
  TensorTarget target;
  TRY_ASSIGN(target.file, files_.open_write(part_path(copy.file), OpenMode::keep));
  if (!state.is_own) return target;
  auto turn = state.digest.turn(copy.slot, done, open_written(copy.file));
  if (!turn) return damaged(copy.file, turn.error());
  target.turn = *turn;
  if (target.turn.held) target.held.reserve(copy.bytes);
  return target;
}

void PackedWriter::close(const Copy& copy, TensorTarget& target, const TensorDigests& digests) {
  if (copy.file == kNoFile) return;
  FileState& state = *states_[copy.file];
  {
    const std::lock_guard lock(state.mutex);
    state.digest.end(copy.slot, target.turn, digests.whole, std::move(target.held));
  }
  turns_.given(copy);
}

/// Syncs the files of these copies. Returns the digests of their beginnings that can be recorded: long enough, and only
/// over tensors that are in the journal once it has these copies. For any other tensor the next run may get other
/// bytes.
Result<std::vector<FileBegun>> PackedWriter::make_durable(std::span<const Copy> copies,
                                                          std::span<const format::Sha256* const> mine) {
  std::set<uint32_t> touched;
  std::set<Path> folders;
  for (const Copy& copy : copies) {
    if (copy.file != kNoFile) touched.insert(copy.file);
  }
  std::vector<FileBegun> hashes;
  for (const uint32_t file : touched) {
    TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
    TRY(part->sync());
    folders.insert(part_path(file).parent_path());
    const FileState& state = *states_[file];
    const std::lock_guard lock(state.mutex);
    auto hash = state.digest.state(mine);
    if (!hash || hash->bytes < kRecordedHashBytes || hash->bytes == plan_.files[file].size_bytes) continue;
    std::vector<bool> recorded = state.recorded;
    for (const Copy& copy : copies) {
      if (copy.file == file) recorded[copy.slot] = true;
    }
    const auto end = recorded.begin() + static_cast<std::ptrdiff_t>(state.digest.tensors());
    if (std::find(recorded.begin(), end, false) == end) hashes.push_back({.file = file, .hash = *std::move(hash)});
  }
  for (const Path& folder : folders)
    TRY(files_.sync_folder(folder));
  return hashes;
}

void PackedWriter::journalled(std::span<const Copy> copies) {
  for (const Copy& copy : copies) {
    if (copy.file == kNoFile) continue;
    FileState& state = *states_[copy.file];
    const std::lock_guard lock(state.mutex);
    state.recorded[copy.slot] = true;
  }
}

Result<void> PackedWriter::shard_begun(const ShardBegun& record, std::span<const format::Sha256* const> mine) {
  const std::span<const Copy> copies = plan_.shards[record.shard];
  TRY_ASSIGN(const std::vector<FileBegun> hashes,
             make_durable(copies.subspan(record.first, record.tensors.size() + record.begun.size()), mine));
  TRY(journal_.append(record, hashes));
  journalled(copies.subspan(record.first, record.tensors.size()));
  return {};
}

Result<void> PackedWriter::forget(uint64_t shard) {
  return journal_.append(ShardBegun{.shard = shard});
}

Result<void> PackedWriter::shard_done(const ShardDone& record, size_t recorded) {
  const std::vector<Copy>& copies = plan_.shards[record.shard];
  TRY_ASSIGN(const std::vector<FileBegun> hashes, make_durable(std::span(copies).subspan(recorded), {}));
  TRY(journal_.append(record, hashes));
  journalled(copies);

  // A file is complete when the shards of all its tensors are recorded; the caller that records the last one seals it.
  std::set<uint32_t> complete;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].file == kNoFile) continue;
    FileState& state = *states_[copies[i].file];
    const std::lock_guard lock(state.mutex);
    know(copies[i], record.tensors[i]);
    if (state.unknown == 0) complete.insert(copies[i].file);
  }
  return seal(std::vector<uint32_t>(complete.begin(), complete.end()));
}

/// Seals compressed files in batches: until its record is durable, a file also exists in raw form.
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
    FileState& state = *states_[file];
    const std::lock_guard lock(state.mutex);
    if (!state.prepared) {  // all its tensors came in earlier runs: rewrite the header, which no digest covers
      TRY(prepare(file, state));
      TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
      TRY(part->sync());
    }
    const auto digest = state.digest.finish(open_written(file));
    if (!digest) return damaged(file, digest.error());
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
    sealed.push_back({.file = file, .sha256 = *digest, .zstd = std::move(zstd)});
  }
  for (const Path& folder : folders)
    TRY(files_.sync_folder(folder));
  TRY(journal_.append(sealed));
  for (size_t i = 0; i < sealed.size(); ++i) {
    if (plan_.recipe.zstd_level) TRY(files_.remove_file(part_path(complete[i])));
    FileState& state = *states_[complete[i]];
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

uint64_t PackedWriter::read_back_bytes() const {
  uint64_t bytes = 0;
  for (const auto& state : states_) {
    const std::lock_guard lock(state->mutex);
    bytes += state->digest.read_back_bytes();
  }
  return bytes;
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
