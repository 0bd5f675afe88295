// How fast a plan will run, from what was measured of the machine: layers come one after the other, and each takes
// attention, router, shared experts and what schedule.h says of its routed experts, averaged over the number of misses,
// each expert being in memory with the hit rate.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include "runtime/budget/compute_trial.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/budget/read_trial.h"

namespace dspack::runtime {

/// The pass, as far as speed depends on it.
struct SpeedShape {
  uint32_t dense_layers = 0;  // of the pass, repetitions counted
  uint32_t moe_layers = 0;
  uint32_t top_k = 0;
  uint32_t experts = 0;  // of a layer
};

/// One token's decode.
struct DecodeEstimate {
  double hit_rate = 0;  // the share of its experts that are in some memory
  double seconds = 0;
  double bytes = 0;  // read for it
  // Where a GPU holds some of the experts (tier_estimate.h):
  double vram_hit_rate = 0;  // in the GPU's
  double link_bytes = 0;     // copied there
  double host_bytes = 0;     // of experts that the CPU computes
  [[nodiscard]] double tokens_per_second() const { return seconds > 0 ? 1 / seconds : 0; }
};
[[nodiscard]] DecodeEstimate estimate_decode(const SpeedShape& shape, const MemoryPlan& plan,
                                             const ComputeTimes& compute, const ReadTimes& reads, double hit_rate);

/// Whether an expert is in memory where routing is uniform: whatever the policy, the share that has a slot.
[[nodiscard]] double uniform_hit_rate(const MemoryPlan& plan);

/// Published runs re-use 18 to 43 % of the previous token's experts. The rate if that share is re-used, whose slots
/// the token before has just filled, and the rest is uniform; below one token's slots nothing can be re-used.
inline constexpr double kReusedShare = 0.3;
[[nodiscard]] double local_hit_rate(const MemoryPlan& plan);

/// A prompt into empty memory.
struct PrefillEstimate {
  uint32_t tokens = 0;
  double experts = 0;  // read; an expert counts again for each chunk that needs it
  double bytes = 0;
  double seconds = 0;
  double link_bytes = 0;  // copied to a GPU that holds some
};
/// `compute`: of a pass of `measured_rows`; longer chunks are scaled.
[[nodiscard]] PrefillEstimate estimate_prefill(const SpeedShape& shape, const MemoryPlan& plan,
                                               const ComputeTimes& compute, uint32_t measured_rows,
                                               const ReadTimes& reads, uint32_t tokens);

/// Experts of a layer that `rows` tokens go to, where routing is uniform.
[[nodiscard]] double distinct_experts(const SpeedShape& shape, uint32_t rows);

}  // namespace dspack::runtime
