// Reads one expert into its slot: all of its blocks at once, then the checks and moves that make it usable.
// Threads: `start` may be called from any thread; the rest happens on the pool's. Lifetime: borrows tier, pool and
// slot until `done` was called. Errors: those of the tier; corrupt (a digest does not fit); cancelled (dropped).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "runtime/access/tier.h"
#include "runtime/experts/slot_plan.h"
#include "runtime/experts/transfer_pool.h"

namespace dspack::runtime {

struct LoadOutcome {
  Result<void> result;
  uint64_t bytes_read = 0;  // all of the expert's, unless it failed or was dropped
};

struct ExpertLoadRequest {
  ExpertKey key;
  const SlotPlan* plan = nullptr;  // borrowed until `done` was called
  std::span<std::byte> slot;       // slot_bytes of the plan, on a page
  Urgency urgency = Urgency::demand;
  uint64_t group = 0;   // of TransferPool::submit
  bool verify = false;  // digests, where the tier knows them; if they fit, the tier is told
  /// The slot is part of a PageRange: files are mapped there instead of read, where that is possible.
  bool in_place = false;
  std::function<void(LoadOutcome)> done;  // called once, on a thread of the pool or by TransferPool::drop
};

/// Begins to read.
void start_load(Tier& tier, TransferPool& pool, ExpertLoadRequest request);

/// The expert's tensors as they lie in a slot.
[[nodiscard]] std::vector<TensorBytes> tensors_in(const SlotPlan& plan, std::span<const std::byte> slot);

/// Compares the tensors with their digests, where the tier knows them. Errors: corrupt, naming file and tensor.
[[nodiscard]] Result<void> check_digests(const Tier& tier, std::span<const TensorBytes> tensors);

}  // namespace dspack::runtime
