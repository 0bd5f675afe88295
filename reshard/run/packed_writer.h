// The files of a packed repository while they are made: partial files under part/ in the work folder, filled by
// positional writes from several shards at once. When a shard is done, its bytes are made durable and recorded in the
// journal; files that then have all their bytes are renamed to their final names, or compressed.
// Threads: thread-safe. Lifetime: borrows everything it is given. Errors: io, budget, corrupt (the disk returns other
// bytes than were written).
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

/// The destination of one tensor's bytes.
struct TensorTarget {
  std::unique_ptr<format::WriteFile> file;  // null: the bytes are not written
  FileDigest::Turn turn{};                  // for the file's digest
  std::vector<std::byte> held{};            // the tensor's bytes, if turn.held
};

/// The destinations of a shard's tensors while it streams by. Threads: thread-safe.
class TensorTargets {
 public:
  virtual ~TensorTargets() = default;
  /// The target for a tensor's bytes from byte `done` on; an earlier run has written those before.
  [[nodiscard]] virtual Result<TensorTarget> open(const Copy& copy, uint64_t done) = 0;
  /// Returns a target after the tensor's last byte.
  virtual void close(const Copy& copy, TensorTarget& target, const TensorDigests& digests) = 0;
};

/// The digests of one complete planned file.
struct FileDigests {
  format::Digest sha256;  // digest of the raw bytes
  std::optional<format::CompressedForm> zstd{};
  std::vector<TensorDigests> tensors;  // in the file's order
};

struct WriterLimits {
  DiskUse disk{};
  uint64_t held_bytes = kHeldBytes;  // memory for tensors that arrive early
};

class PackedWriter final : public TensorTargets {
 public:
  PackedWriter(const Plan& plan, const RunScope& scope, format::FileSystem& files, Journal& journal,
               const WriterLimits& limits);

  /// Takes over the results of an earlier run: sealed files, and digests of tensors. Files that had all their bytes but
  /// no record are read, compared and sealed.
  [[nodiscard]] Result<void> resume(const JournalState& state);

  /// Opens the partial file for one tensor's bytes; creates and sizes it and writes its header if needed. A copy
  /// without a file gets a target without one.
  [[nodiscard]] Result<TensorTarget> open(const Copy& copy, uint64_t done) override;
  void close(const Copy& copy, TensorTarget& target, const TensorDigests& digests) override;
  /// Records the progress of a shard whose bytes up to the record's `at` are written: makes those since the last record
  /// durable, then appends the record. `mine`: the file digests that the caller is adding a tensor's bytes to.
  [[nodiscard]] Result<void> shard_begun(const ShardBegun& record, std::span<const format::Sha256* const> mine);
  /// Does the same for a shard that was read to its end, and seals the files that are complete now. `recorded`: the
  /// number of its copies in earlier records.
  [[nodiscard]] Result<void> shard_done(const ShardDone& record, size_t recorded);
  /// Discards what is recorded of a shard that turned out to be wrong.
  [[nodiscard]] Result<void> forget(uint64_t shard);
  /// The turns in which shards may be read.
  [[nodiscard]] Turns& turns() { return turns_; }

  /// Disk space still needed at least for the output of the scope's shards, while jobs write. Excludes the space for
  /// compression: how much of it is in use at a given moment is unknown.
  [[nodiscard]] Result<uint64_t> missing_bytes() const;

  /// Bytes read back from the files for their digests.
  [[nodiscard]] uint64_t read_back_bytes() const;

  /// Digests of all files. Precondition: every file is sealed.
  [[nodiscard]] std::vector<FileDigests> digests() const;
  [[nodiscard]] DurableFolders& folders() { return folders_; }

 private:
  struct FileState {
    FileState(const PlannedFile& file, const format::Checkpoint& result, HoldingRoom& room)
        : tensors(file.tensors.size()),
          unknown(file.tensors.size()),
          recorded(file.tensors.size()),
          digest(file, result, room) {}

    mutable std::mutex mutex;  // guards the other fields
    bool is_own = false;       // all its tensors come from the scope's shards
    bool is_begun = false;     // an earlier run has written some of it
    bool prepared = false;
    std::optional<FileSealed> sealed;
    std::vector<std::optional<TensorDigests>> tensors;  // set for shards that are done
    uint64_t unknown = 0;                               // unset entries of `tensors`
    std::vector<bool> recorded;                         // per slot: the tensor is in the journal
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
  Result<void> prepare(uint32_t file, FileState& state);
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
  std::vector<std::unique_ptr<FileState>> states_;  // per file of the plan
};

}  // namespace dspack::reshard
