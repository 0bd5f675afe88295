// The digest of one output file while its tensors come, and the turns in which shards may bring them. The digest takes
// bytes in the file's order alone; a tensor that comes before its turn is held in memory where there is room for it,
// and read back from the disk where there is none.
// Threads: a FileDigest belongs to one at a time, Turns and HoldingRoom are thread-safe. Lifetime: borrows the plan,
// its catalogue and the room. Errors: io, corrupt (what is on the disk is not what was written), cancelled.
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

/// Usual size of a HoldingRoom: what 256 MiB leave beside the pieces of shards that several connections fetch
/// (stream.h). The scales of all experts of a layer of DeepSeek-V3 have 2.8 MB.
inline constexpr uint64_t kHeldBytes = 12ULL << 20;

/// Memory for tensors that came before their turn, of all files together. Threads: thread-safe.
class HoldingRoom {
 public:
  explicit HoldingRoom(uint64_t bytes) : left_(bytes) {}
  /// False: there is not that much.
  [[nodiscard]] bool take(uint64_t bytes);
  void give_back(uint64_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> left_;
};

/// How a file is opened in which tensors lie that are to be read back.
using OpenWritten = std::function<Result<std::unique_ptr<format::ReadFile>>()>;

/// Of one file. Threads: one at a time.
class FileDigest {
 public:
  FileDigest(const PlannedFile& file, const format::Checkpoint& result, HoldingRoom& room)
      : file_(file), result_(result), room_(room), written_(file.tensors.size()) {}

  [[nodiscard]] bool is_begun() const { return hash_.has_value(); }
  void begin(std::string_view header);
  /// With the digest of the file's beginning, which ends with a tensor or in the midst of one.
  void begin(const format::Sha256State& hash);
  /// A tensor is on the disk, whole, since an earlier run.
  void found(uint32_t slot, const format::Digest& whole) { written_[slot] = whole; }
  [[nodiscard]] bool has(uint32_t slot) const { return written_[slot].has_value(); }

  /// What is to be done with a tensor's bytes, from byte `done` of it on.
  struct Turn {
    format::Sha256* hash = nullptr;  // they belong into it; until `end`
    bool held = false;               // they are to be kept and given to `end`
  };
  /// Precondition: is_begun(). Reads back what lies before the tensor, if all of that is there.
  [[nodiscard]] Result<Turn> turn(uint32_t slot, uint64_t done, const OpenWritten& open);
  /// The tensor's last byte has come and is written.
  void end(uint32_t slot, const Turn& turn, const format::Digest& whole, std::vector<std::byte> held);

  /// So many of the file's first tensors are wholly in the digest.
  [[nodiscard]] size_t tensors() const { return next_; }
  /// Of the file's beginning; nullopt while a tensor's bytes are being added, unless `mine` has the digest: who asks
  /// adds them.
  [[nodiscard]] std::optional<format::Sha256State> state(std::span<const format::Sha256* const> mine) const;
  /// After the last tensor: what is not known yet is read back.
  [[nodiscard]] Result<format::Digest> finish(const OpenWritten& open);
  /// Bytes that were read back so far.
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
  uint64_t hashed_ = 0;  // bytes of the file in hash_, as far as its tensors' ends are known
  bool in_use_ = false;
  std::map<size_t, std::vector<std::byte>> held_;       // by slot
  std::vector<std::optional<format::Digest>> written_;  // by slot; of those that are whole
  uint64_t read_back_ = 0;
};

/// In which order shards may be read that feed the same files: a shard that has much for a file waits until those that
/// come before it in that file have given theirs. Those are later shards (format::reading_order), so whoever reads
/// shards from the last to the first never waits for one that nobody reads. Files that other parts have tensors of get
/// no digest here, and nobody waits for them. Threads: thread-safe.
class Turns {
 public:
  /// A shard that has at most `small_bytes` for a file does not wait.
  Turns(const Plan& plan, const RunScope& scope, uint64_t small_bytes);

  /// The tensor is written.
  void given(const Copy& copy);

  /// How far the shard may be read from `offset` on; `offset` itself: not at all now.
  [[nodiscard]] uint64_t end_of_turn(uint64_t shard, uint64_t offset) const;
  /// Waits until it is farther than that.
  [[nodiscard]] Result<void> wait(uint64_t shard, uint64_t offset, const std::stop_token& stop);

 private:
  /// What a shard has for a file: tensors that are multiples of a page, which come first in it.
  struct Share {
    uint64_t shard = 0;
    uint64_t bytes = 0;
    uint64_t left = 0;  // tensors that are not given yet
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
