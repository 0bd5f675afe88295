// In which order shards may be read that feed the same files: a file's digest takes bytes in the file's order alone,
// and what would come before its turn has to be held in memory or read twice. A shard that has much for a file waits
// until those that come before it in that file have given theirs. Those are later shards (format::reading_order), so
// whoever reads shards from the last to the first never waits for one that nobody reads. Files that other parts have
// tensors of get no digest here, and nobody waits for them. Threads: thread-safe. Lifetime: borrows the plan. Errors:
// cancelled.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <vector>

#include "reshard/run/part.h"

namespace dspack::reshard {

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
