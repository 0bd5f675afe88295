// Reads one expert into its slot: all of its blocks at once, then the checks and moves that make it usable.
// Threads: start_load may be called from any thread; the rest runs on the pool's. Lifetime: borrows tier, pool and slot
// until `done` was called. Errors: those of the tier; corrupt (a digest does not match); cancelled (dropped).
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
  uint64_t bytes_read = 0;  // all bytes of the expert, unless it failed or was dropped
};

struct ExpertLoadRequest {
  ExpertKey key;
  const SlotPlan* plan = nullptr;  // borrowed until `done` was called
  std::span<std::byte> slot;       // plan->slot_bytes, page-aligned
  Urgency urgency = Urgency::demand;
  uint64_t group = 0;   // see TransferPool::submit
  bool verify = false;  // check the digests that the tier knows; if they match, call Tier::trust
  /// The slot is part of a PageRange: map files there instead of reading them, if possible.
  bool in_place = false;
  std::function<void(LoadOutcome)> done;  // called once, on a thread of the pool or by TransferPool::drop
};

/// Starts reading, and returns at once.
void start_load(Tier& tier, TransferPool& pool, ExpertLoadRequest request);

/// The expert's stored tensors in a slot.
[[nodiscard]] std::vector<TensorBytes> tensors_in(const SlotPlan& plan, std::span<const std::byte> slot);

/// Compares the tensors with their digests, if the tier knows them. Errors: corrupt, naming file and tensor.
[[nodiscard]] Result<void> check_digests(const Tier& tier, std::span<const TensorBytes> tensors);

}  // namespace dspack::runtime
