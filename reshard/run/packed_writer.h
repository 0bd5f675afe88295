// The files of a packed repository while they are being made: partial files under part/ of the work folder, filled by
// positional writes from several shards at once. When a shard is done, its bytes are made durable and journalled; files
// that then have all their bytes are renamed to their final names, or compressed to them.
// Threads: thread-safe. Lifetime: borrows everything it is given. Errors: io, budget, corrupt (what is on the disk is
// not what was written).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "format/digest.h"
#include "format/file_system.h"
#include "reshard/plan/plan.h"
#include "reshard/run/disk_need.h"
#include "reshard/run/file_digest.h"
#include "reshard/run/journal.h"
#include "reshard/run/output_folder.h"
#include "reshard/run/part.h"

namespace dspack::reshard {

/// Where one tensor's bytes go.
struct TensorTarget {
  std::unique_ptr<format::WriteFile> file;  // null: they go nowhere
  FileDigest::Turn turn{};                  // of the file's digest
  std::vector<std::byte> held{};            // the bytes, if the turn says so
};

/// Where the tensors of a shard go while it streams by. Threads: thread-safe.
class TensorTargets {
 public:
  virtual ~TensorTargets() = default;
  /// For the bytes of a tensor from `done` of them on, which an earlier run has written.
  [[nodiscard]] virtual Result<TensorTarget> open(const Copy& copy, uint64_t done) = 0;
  /// Gives a target back after the tensor's last byte.
  virtual void close(const Copy& copy, TensorTarget& target, const TensorDigests& digests) = 0;
};

/// Of one planned file that is there whole.
struct FileDigests {
  format::Digest sha256;  // of its raw bytes
  std::optional<format::CompressedForm> zstd{};
  std::vector<TensorDigests> tensors;  // in the file's order
};

struct WriterLimits {
  DiskUse disk{};
  uint64_t held_bytes = kHeldBytes;  // of tensors that come before their turn in a file
};

class PackedWriter final : public TensorTargets {
 public:
  PackedWriter(const Plan& plan, const RunScope& scope, format::FileSystem& files, Journal& journal,
               const WriterLimits& limits);

  /// Takes over what an earlier run has done: sealed files, and the digests of tensors. Files that had all their bytes
  /// but no record are read, compared and sealed.
  [[nodiscard]] Result<void> resume(const JournalState& state);

  /// Opens the partial file for one tensor's bytes; it is created, sized and given its header if need be. Of a copy
  /// without a file: a target without one.
  [[nodiscard]] Result<TensorTarget> open(const Copy& copy, uint64_t done) override;
  void close(const Copy& copy, TensorTarget& target, const TensorDigests& digests) override;
  /// A shard was read as far as the record says and all those bytes are written: makes those durable that earlier
  /// records do not have, and says so in the journal. `mine`: digests of files that tensors under way are being added
  /// to.
  [[nodiscard]] Result<void> shard_begun(const ShardBegun& record, std::span<const format::Sha256* const> mine);
  /// A shard was read to its end and all its bytes are written: likewise, and seals the files that are complete now.
  /// `recorded`: how many of its copies earlier records have.
  [[nodiscard]] Result<void> shard_done(const ShardDone& record, size_t recorded);
  /// A shard was not what it should be: nothing that is recorded of it counts.
  [[nodiscard]] Result<void> forget(uint64_t shard);
  /// When which shard may be read.
  [[nodiscard]] Turns& turns() { return turns_; }

  /// Disk that is still needed at least for what comes from the scope's shards, while jobs write: without the room in
  /// which they compress, of which nobody can say at one moment how much is in use.
  [[nodiscard]] Result<uint64_t> missing_bytes() const;

  /// Bytes that were read from the files again, for their digests.
  [[nodiscard]] uint64_t read_back_bytes() const;

  /// Of all files, once every one is sealed.
  [[nodiscard]] std::vector<FileDigests> digests() const;
  [[nodiscard]] DurableFolders& folders() { return folders_; }

 private:
  struct State {
    State(const PlannedFile& file, const format::Checkpoint& result, HoldingRoom& room)
        : tensors(file.tensors.size()),
          unknown(file.tensors.size()),
          recorded(file.tensors.size()),
          digest(file, result, room) {}

    mutable std::mutex mutex;  // guards all of it
    bool is_own = false;       // all its tensors come from the scope's shards
    bool is_begun = false;     // an earlier run has written some of it
    bool prepared = false;
    std::optional<FileSealed> sealed;
    std::vector<std::optional<TensorDigests>> tensors;  // of shards that are done
    uint64_t unknown = 0;                               // of `tensors`
    std::vector<bool> recorded;                         // by slot: the journal has the tensor
    FileDigest digest;
  };

  [[nodiscard]] format::Path part_path(uint32_t file) const;
  [[nodiscard]] format::Path final_path(uint32_t file) const;
  void know(const Copy& copy, const TensorDigests& digests);
  void find(uint64_t shard, const std::vector<TensorDigests>& tensors);
  void begin_digests(const JournalState& journalled);
  Result<std::vector<FileBegun>> make_durable(std::span<const Copy> copies,
                                              std::span<const format::Sha256* const> mine);
  void journalled(std::span<const Copy> copies);
  Result<void> prepare(uint32_t file, State& state);
  Result<void> take_back(uint32_t file, const JournalState& journalled);
  Result<void> seal(std::span<const uint32_t> complete);
  Result<void> seal_batch(std::span<const uint32_t> complete);
  [[nodiscard]] OpenWritten open_written(uint32_t file) const;
  [[nodiscard]] Error damaged(uint32_t file, const Error& error) const;

  const Plan& plan_;
  RunScope scope_;
  format::FileSystem& files_;
  Journal& journal_;
  DiskUse use_;
  DurableFolders folders_;
  HoldingRoom room_;
  Turns turns_;
  std::vector<std::unique_ptr<State>> states_;  // per file of the plan
};

}  // namespace dspack::reshard
