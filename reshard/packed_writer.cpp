#include "reshard/packed_writer.h"

#include <algorithm>

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

using format::Digest;
using format::OpenMode;
using format::Path;

// Read back in pieces of this size when a file is sealed: one such buffer a job.
constexpr uint64_t kReadBackBytes = 1 << 20;

}  // namespace

Result<void> DurableFolders::make(const Path& folder) {
  const std::lock_guard lock(mutex_);
  std::vector<Path> missing;
  Path at = folder;
  for (; !at.empty() && !known_.contains(at) && at != at.parent_path(); at = at.parent_path()) {
    TRY_ASSIGN(const auto info, files_.stat(at));
    if (info) break;
    missing.push_back(at);
  }
  if (!at.empty() && !known_.contains(at) && at != at.parent_path()) {
    // It may come from a run that was killed before it had synced the name. Folders around the output are not ours: one
    // that we may not open is not one that such a run has written to.
    const auto synced = sync_name(at);
    if (!synced && is_inside(at)) return synced.error();
    known_.insert(at);
  }
  // One at a time from above, so that after a kill the last one alone can lack its sync.
  for (auto made = missing.rbegin(); made != missing.rend(); ++made) {
    TRY(files_.make_folders(*made));
    TRY(sync_name(*made));
    known_.insert(*made);
  }
  return {};
}

Result<void> DurableFolders::sync_name(const Path& folder) {
  return files_.sync_folder(folder.has_parent_path() ? folder.parent_path() : Path("."));
}

bool DurableFolders::is_inside(const Path& folder) const {
  const auto [left, right] = std::mismatch(out_.begin(), out_.end(), folder.begin(), folder.end());
  return left == out_.end() && right != folder.end();
}

PackedWriter::PackedWriter(const Plan& plan, const format::Checkpoint& source, Path out, format::FileSystem& files,
                           Journal& journal)
    : plan_(plan), source_(source), out_(std::move(out)), files_(files), journal_(journal), folders_(files, out_) {
  for (const PlannedFile& file : plan.files) {
    states_.push_back(std::make_unique<State>());
    states_.back()->tensors.resize(file.tensors.size());
  }
}

Path PackedWriter::part_path(uint32_t file) const {
  return work_folder(out_) / "part" / plan_.files[file].path;
}

Path PackedWriter::final_path(uint32_t file) const {
  return out_ / plan_.files[file].path;
}

Result<void> PackedWriter::resume(const JournalState& state) {
  for (const auto& [shard, done] : state.shards) {
    for (size_t i = 0; i < done.tensors.size(); ++i) {
      const Copy& copy = plan_.shards[shard][i];
      states_[copy.file]->tensors[copy.slot] = done.tensors[i];
    }
  }
  for (uint32_t file = 0; file < states_.size(); ++file) {
    State& entry = *states_[file];
    TRY_ASSIGN(const auto info, files_.stat(final_path(file)));
    const auto record = state.files.find(file);
    const bool complete =
        std::all_of(entry.tensors.begin(), entry.tensors.end(), [](const auto& t) { return t.has_value(); });
    const bool whole = info && info->size_bytes == plan_.files[file].size_bytes;
    if (record != state.files.end() && complete && whole) {
      entry.sealed = record->second.sha256;
    } else if (info) {
      // Renamed, but a shard that feeds it was not recorded: it is partial again until that shard is read anew.
      TRY(folders_.make(part_path(file).parent_path()));
      TRY(files_.rename(final_path(file), part_path(file)));
    }
    if (entry.sealed || !complete) continue;
    TRY_ASSIGN(const auto part, files_.stat(part_path(file)));
    if (!part) {
      return Error{ErrorKind::conflict,
                   fmt::format("{}: was made by an earlier run and is gone; remove {} to start again",
                               final_path(file).string(), out_.string())};
    }
    TRY(seal(file, entry));
  }
  return {};
}

Result<void> PackedWriter::prepare(uint32_t file) {
  State& state = *states_[file];
  const std::lock_guard lock(state.mutex);
  if (state.prepared) return {};
  TRY(folders_.make(part_path(file).parent_path()));
  TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
  TRY(part->resize(plan_.files[file].size_bytes));
  TRY(part->write(0, format::as_bytes(planned_header(plan_.files[file], source_))));
  state.prepared = true;
  return {};
}

Result<std::unique_ptr<format::WriteFile>> PackedWriter::open(uint32_t file) {
  TRY(prepare(file));
  return files_.open_write(part_path(file), OpenMode::keep);
}

Result<void> PackedWriter::tensor_done(const Copy& copy, TensorDigests digests) {
  State& state = *states_[copy.file];
  const std::lock_guard lock(state.mutex);
  state.tensors[copy.slot] = std::move(digests);
  const bool complete =
      std::all_of(state.tensors.begin(), state.tensors.end(), [](const auto& t) { return t.has_value(); });
  return complete ? seal(copy.file, state) : Result<void>();
}

Result<Digest> PackedWriter::read_back(uint32_t file, const State& state) const {
  const PlannedFile& planned = plan_.files[file];
  TRY_ASSIGN(const auto part, files_.open_read(part_path(file)));
  if (part->size_bytes() != planned.size_bytes) {
    return Error{ErrorKind::corrupt, fmt::format("{}: has {} bytes instead of {}", part_path(file).string(),
                                                 part->size_bytes(), planned.size_bytes)};
  }
  std::vector<std::byte> buffer(std::min(kReadBackBytes, planned.size_bytes));
  format::Sha256 whole;
  const auto hash = [&](uint64_t begin, uint64_t end, format::Sha256* tensor) -> Result<void> {
    for (uint64_t at = begin; at < end;) {
      const std::span<std::byte> piece(buffer.data(), std::min<uint64_t>(buffer.size(), end - at));
      TRY(part->read(at, piece));
      whole.update(piece);
      if (tensor != nullptr) tensor->update(piece);
      at += piece.size();
    }
    return {};
  };
  TRY(hash(0, planned.data_start, nullptr));
  for (size_t slot = 0; slot < planned.tensors.size(); ++slot) {
    const uint64_t end = slot + 1 < planned.tensors.size() ? planned.offsets[slot + 1] : planned.size_bytes;
    format::Sha256 tensor;
    TRY(hash(planned.offsets[slot], end, &tensor));
    if (tensor.finish() != state.tensors[slot]->whole) {
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: tensor \"{}\" reads back differently from what was written; is the disk sound? "
                               "Remove {} to start again",
                               part_path(file).string(), source_.tensors()[planned.tensors[slot]].name, out_.string())};
    }
  }
  return whole.finish();
}

Result<void> PackedWriter::seal(uint32_t file, State& state) {
  TRY_ASSIGN(const Digest digest, read_back(file, state));
  {
    TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
    TRY(part->sync());
  }
  TRY(folders_.make(final_path(file).parent_path()));
  TRY(files_.rename(part_path(file), final_path(file)));
  TRY(files_.sync_folder(final_path(file).parent_path()));
  TRY(journal_.append(FileSealed{file, digest}));
  state.sealed = digest;
  return {};
}

Result<void> PackedWriter::sync(uint32_t file) {
  State& state = *states_[file];
  const std::lock_guard lock(state.mutex);
  if (state.sealed) return {};
  TRY_ASSIGN(const auto part, files_.open_write(part_path(file), OpenMode::keep));
  TRY(part->sync());
  return files_.sync_folder(part_path(file).parent_path());
}

bool PackedWriter::sealed(uint32_t file) const {
  const std::lock_guard lock(states_[file]->mutex);
  return states_[file]->sealed.has_value();
}

const std::vector<std::optional<TensorDigests>>& PackedWriter::tensor_digests(uint32_t file) const {
  return states_[file]->tensors;
}

const Digest& PackedWriter::file_digest(uint32_t file) const {
  return states_[file]->sealed.value();
}

}  // namespace dspack::reshard
