// The files of a packed repository while they are being made: partial files under part/ of the work folder, filled by
// positional writes from several shards at once. When a shard is done, its bytes are made durable and journalled; files
// that then have all their bytes are renamed to their final names, or compressed to them.
// Threads: thread-safe. Lifetime: borrows everything it is given. Errors: io, budget, corrupt (what is on the disk is
// not what was written).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "format/digest.h"
#include "format/file_system.h"
#include "reshard/disk_need.h"
#include "reshard/journal.h"
#include "reshard/output_folder.h"
#include "reshard/part.h"
#include "reshard/plan.h"

namespace dspack::reshard {

/// Where one tensor's bytes go.
struct TensorTarget {
  std::unique_ptr<format::WriteFile> file;  // null: they go nowhere
  /// The digest of the file as far as it is known. Set if this tensor is what follows: then its bytes belong into it.
  format::Sha256* file_hash = nullptr;
};

/// Where the tensors of a shard go while it streams by. Threads: thread-safe.
class TensorTargets {
 public:
  virtual ~TensorTargets() = default;
  [[nodiscard]] virtual Result<TensorTarget> open(const Copy& copy) = 0;
  /// Gives a target back after the tensor's last byte.
  virtual void close(const Copy& copy, const TensorTarget& target) = 0;
};

/// Of one planned file that is there whole.
struct FileDigests {
  format::Digest sha256;  // of its raw bytes
  std::optional<format::CompressedForm> zstd{};
  std::vector<TensorDigests> tensors;  // in the file's order
};

class PackedWriter final : public TensorTargets {
 public:
  PackedWriter(const Plan& plan, const RunScope& scope, format::FileSystem& files, Journal& journal,
               const DiskUse& use);

  /// Takes over what an earlier run has done: sealed files, and the digests of tensors whose shards are done. Files
  /// that had all their bytes but no record are read, compared and sealed.
  [[nodiscard]] Result<void> resume(const JournalState& state);

  /// Opens the partial file for one tensor's bytes; it is created, sized and given its header if need be. Of a copy
  /// without a file: a target without one.
  [[nodiscard]] Result<TensorTarget> open(const Copy& copy) override;
  void close(const Copy& copy, const TensorTarget& target) override;
  /// A shard was read to its end and all its bytes are written: makes them durable, says so in the journal, and seals
  /// the files that are complete now.
  [[nodiscard]] Result<void> shard_done(const ShardDone& record);

  /// Disk that is still needed at least for what comes from the scope's shards, while jobs write: without the room in
  /// which they compress, of which nobody can say at one moment how much is in use.
  [[nodiscard]] Result<uint64_t> missing_bytes() const;

  /// Of all files, once every one is sealed.
  [[nodiscard]] std::vector<FileDigests> digests() const;
  [[nodiscard]] DurableFolders& folders() { return folders_; }

 private:
  struct State {
    mutable std::mutex mutex;  // guards all of it
    bool prepared = false;
    std::optional<FileSealed> sealed;
    std::vector<std::optional<TensorDigests>> tensors;
    uint64_t unknown = 0;  // of `tensors`
    // The file's digest grows with the tensors that happen to come in the file's own order, which for released
    // checkpoints are nearly all; what it lacks at the end is read from the disk.
    std::optional<format::Sha256> hash;
    uint64_t hashed_bytes = 0;
    bool hash_in_use = false;
  };

  [[nodiscard]] format::Path part_path(uint32_t file) const;
  [[nodiscard]] format::Path final_path(uint32_t file) const;
  void know(const Copy& copy, const TensorDigests& digests);
  Result<void> prepare(uint32_t file, State& state);
  Result<void> take_back(uint32_t file, const JournalState& journalled);
  Result<void> seal(std::span<const uint32_t> complete);
  Result<void> seal_batch(std::span<const uint32_t> complete);
  Result<format::Digest> finish_digest(uint32_t file, State& state) const;

  const Plan& plan_;
  RunScope scope_;
  format::FileSystem& files_;
  Journal& journal_;
  DiskUse use_;
  DurableFolders folders_;
  std::vector<std::unique_ptr<State>> states_;  // per file of the plan
};

}  // namespace dspack::reshard
