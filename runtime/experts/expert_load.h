// Reads one expert into its slot: all of its blocks at once, then the checks and moves that make it usable.
// Threads: `start` may be called from any thread; the rest happens on the pool's. Lifetime: borrows storage, pool and
// slot until `done` was called. Errors: those of the storage; corrupt (a digest does not fit); cancelled (dropped).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "runtime/experts/slot_plan.h"
#include "runtime/experts/transfer_pool.h"
#include "runtime/storage/weight_storage.h"

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
  uint64_t group = 0;                     // of TransferPool::submit
  bool verify = false;                    // digests, where the storage knows them; if they fit, the storage is told
  std::function<void(LoadOutcome)> done;  // called once, on a thread of the pool or by TransferPool::drop
};

/// Begins to read.
void start_load(WeightStorage& storage, TransferPool& pool, ExpertLoadRequest request);

/// The expert's tensors as they lie in a slot.
[[nodiscard]] std::vector<TensorBytes> tensors_in(const SlotPlan& plan, std::span<const std::byte> slot);

/// Compares the tensors with their digests, where the storage knows them. Errors: corrupt, naming file and tensor.
[[nodiscard]] Result<void> check_digests(const WeightStorage& storage, std::span<const TensorBytes> tensors);

}  // namespace dspack::runtime
