// The files of a packed repository while they are being made: partial files under .reshard/part/, filled by positional
// writes from several shards at once, each checked, synced and renamed to its final name when it has all its bytes.
// Threads: thread-safe. Lifetime: borrows everything it is given. Errors: io, budget, corrupt (what is on the disk is
// not what was written).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "format/file_system.h"
#include "reshard/journal.h"
#include "reshard/plan.h"

namespace dspack::reshard {

/// Folders inside the output that exist only while a run is unfinished.
[[nodiscard]] inline format::Path work_folder(const format::Path& out) {
  return out / ".reshard";
}

/// Creates the output folder and those below it so that they survive a loss of power, whoever has created them.
class DurableFolders {
 public:
  DurableFolders(format::FileSystem& files, format::Path out) : files_(files), out_(std::move(out)) {}
  [[nodiscard]] Result<void> make(const format::Path& folder);

 private:
  [[nodiscard]] Result<void> sync_name(const format::Path& folder);
  [[nodiscard]] bool is_inside(const format::Path& folder) const;

  format::FileSystem& files_;
  format::Path out_;
  std::mutex mutex_;
  std::set<format::Path> known_;  // synced by this run; guarded by mutex_
};

class PackedWriter {
 public:
  PackedWriter(const Plan& plan, const format::Checkpoint& source, format::Path out, format::FileSystem& files,
               Journal& journal);

  /// Takes over what an earlier run has done: sealed files, and the digests of tensors whose shards are done.
  [[nodiscard]] Result<void> resume(const JournalState& state);

  /// Opens the partial file for one tensor's bytes; it is created, sized and given its header if need be.
  [[nodiscard]] Result<std::unique_ptr<format::WriteFile>> open(uint32_t file);
  /// Says that all bytes of a tensor are written. With the last one the file is sealed; the digest of what is read
  /// back from the disk must then be that of what was streamed.
  [[nodiscard]] Result<void> tensor_done(const Copy& copy, TensorDigests digests);
  /// Makes what was written to a file survive a loss of power, sealed or not.
  [[nodiscard]] Result<void> sync(uint32_t file);

  [[nodiscard]] bool sealed(uint32_t file) const;
  /// Digests of a sealed file, in the order of its tensors.
  [[nodiscard]] const std::vector<std::optional<TensorDigests>>& tensor_digests(uint32_t file) const;
  [[nodiscard]] const format::Digest& file_digest(uint32_t file) const;
  [[nodiscard]] DurableFolders& folders() { return folders_; }

 private:
  struct State {
    bool prepared = false;
    std::optional<format::Digest> sealed;
    std::vector<std::optional<TensorDigests>> tensors;
    std::mutex mutex;  // guards the fields above
  };

  [[nodiscard]] format::Path part_path(uint32_t file) const;
  [[nodiscard]] format::Path final_path(uint32_t file) const;
  Result<void> prepare(uint32_t file);
  Result<void> seal(uint32_t file, State& state);
  Result<format::Digest> read_back(uint32_t file, const State& state) const;

  const Plan& plan_;
  const format::Checkpoint& source_;
  format::Path out_;
  format::FileSystem& files_;
  Journal& journal_;
  DurableFolders folders_;
  std::vector<std::unique_ptr<State>> states_;  // per file of the plan
};

}  // namespace dspack::reshard
