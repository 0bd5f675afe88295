// The digest of one output file while its tensors arrive, and the turns in which shards may deliver them. The digest
// takes bytes only in file order; a tensor that arrives early is held in memory if there is room, and otherwise read
// back from disk later.
// Threads: a FileDigest belongs to one thread at a time, Turns and HoldingRoom are thread-safe. Lifetime: borrows the
// plan, its catalogue and the room. Errors: io, corrupt (the disk returns other bytes than were written), cancelled.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "format/digest.h"
#include "format/file_system.h"
#include "reshard/plan/plan.h"
#include "reshard/run/part.h"

namespace dspack::reshard {

/// Usual size of a HoldingRoom: the rest of 256 MiB that pieces of shards fetched over several connections leave
/// (stream.h). The scales of all experts of a DeepSeek-V3 layer take 2.8 MB.
inline constexpr uint64_t kHeldBytes = 12ULL << 20;

/// Memory shared by all files for tensors that arrive early. Threads: thread-safe.
class HoldingRoom {
 public:
  explicit HoldingRoom(uint64_t bytes) : left_(bytes) {}
  /// False: fewer than `bytes` are left.
  [[nodiscard]] bool take(uint64_t bytes);
  void give_back(uint64_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> left_;
};

/// Opens the file that holds tensors to be read back.
using OpenWritten = std::function<Result<std::unique_ptr<format::ReadFile>>()>;

/// The digest of one file. Threads: one at a time.
class FileDigest {
 public:
  FileDigest(const PlannedFile& file, const format::Checkpoint& result, HoldingRoom& room)
      : file_(file), result_(result), room_(room), written_(file.tensors.size()) {}

  [[nodiscard]] bool is_begun() const { return hash_.has_value(); }
  void begin(std::string_view header);
  /// Starts from the digest of the file's beginning, which may end within a tensor.
  void begin(const format::Sha256State& hash);
  /// An earlier run has written the tensor completely.
  void found(uint32_t slot, const format::Digest& whole) { written_[slot] = whole; }
  [[nodiscard]] bool has(uint32_t slot) const { return written_[slot].has_value(); }

  /// How to treat the bytes of a tensor, from its byte `done` on.
  struct Turn {
    format::Sha256* hash = nullptr;  // add the bytes to it; borrowed until `end`
    bool held = false;               // keep the bytes and pass them to `end`
  };
  /// Precondition: is_begun(). First reads back the preceding tensors that the digest lacks, if all are written.
  [[nodiscard]] Result<Turn> turn(uint32_t slot, uint64_t done, const OpenWritten& open);
  /// Call when the tensor's last byte is written.
  void end(uint32_t slot, const Turn& turn, const format::Digest& whole, std::vector<std::byte> held);

  /// The number of the file's first tensors that are wholly in the digest.
  [[nodiscard]] size_t tensors() const { return next_; }
  /// State of the digest over the file's beginning. nullopt before `begin`, and while a tensor's bytes are being added
  /// unless the caller adds them: `mine` are the digests that it adds to.
  [[nodiscard]] std::optional<format::Sha256State> state(std::span<const format::Sha256* const> mine) const;
  /// Call after the last tensor: reads back whatever is not in the digest yet.
  [[nodiscard]] Result<format::Digest> finish(const OpenWritten& open);
  /// Bytes read back so far.
  [[nodiscard]] uint64_t read_back_bytes() const { return read_back_; }

 private:
  [[nodiscard]] uint64_t end_of(size_t slot) const;
  void take_held();
  Result<void> read_back(size_t until, const OpenWritten& open);

  const PlannedFile& file_;
  const format::Checkpoint& result_;
  HoldingRoom& room_;
  std::optional<format::Sha256> hash_;
  size_t next_ = 0;      // the first tensor that is not wholly in hash_
  uint64_t hashed_ = 0;  // bytes of the file in hash_; those of a running turn count from its `end`
  bool in_use_ = false;
  std::map<size_t, std::vector<std::byte>> held_;       // by slot
  std::vector<std::optional<format::Digest>> written_;  // by slot; set for complete tensors
  uint64_t read_back_ = 0;
};

/// The order in which shards that feed the same files may be read: a shard with more than `small_bytes` for a file
/// waits until the shards before it in that file have delivered theirs. Those have higher numbers
/// (format::reading_order), so reading from the last shard to the first never waits for a shard that is not being read.
/// Files shared with other parts get no digest here, so no shard waits for them. Threads: thread-safe.
class Turns {
 public:
  /// A shard with at most `small_bytes` for a file does not wait.
  Turns(const Plan& plan, const RunScope& scope, uint64_t small_bytes);

  /// Call when the tensor is written.
  void given(const Copy& copy);

  /// The offset up to which the shard may be read from `offset` on; equal to `offset`: it must wait.
  [[nodiscard]] uint64_t end_of_turn(uint64_t shard, uint64_t offset) const;
  /// Blocks until end_of_turn exceeds `offset`.
  [[nodiscard]] Result<void> wait(uint64_t shard, uint64_t offset, const std::stop_token& stop);

 private:
  /// A shard's share of a file: its tensors whose sizes are multiples of a page, which come first in the file.
  struct Share {
    uint64_t shard = 0;
    uint64_t bytes = 0;
    uint64_t left = 0;  // tensors not yet written
  };
  [[nodiscard]] bool is_open(const Copy& copy) const;
  [[nodiscard]] uint64_t first_closed(uint64_t shard, uint64_t offset) const;

  const Plan& plan_;
  uint64_t small_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::vector<Share>> shares_;     // per file, by descending shard; guarded by mutex_
  std::vector<std::vector<uint32_t>> owners_;  // per file and slot, index into shares_
};

}  // namespace dspack::reshard
