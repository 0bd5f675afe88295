// Predicts how fast a plan will run, from measurements of the machine. Layers run one after the other; each takes
// attention, router, shared experts and the time of schedule.h for its routed experts: those in place are computed
// while misses are copied, or computed by the CPU, and what no memory has is read first. Averaged over where a token's
// experts are. Misses are shared between link and CPU so that a layer ends earliest, unless --dev miss says otherwise.
// A run on the CPU is one whose link takes no time. Threads: pure functions on plain values. Errors: none.
#pragma once

#include "runtime/budget/compute_trial.h"
#include "runtime/budget/link_trial.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/budget/read_trial.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

/// The pass, as far as speed depends on it.
/// How a layer's experts are divided among several GPUs; of one GPU as it is here.
struct GpuShares {
  double busiest_of_token = 1;  // of a token's experts, those of the GPU that has most of them, on average
  double busiest = 1;           // of all experts
  double further = 0;           // of all experts, those of the further GPUs, to which rows cross the link
};
/// In proportion to their slots, where a token's experts fall on GPUs at random.
[[nodiscard]] GpuShares gpu_shares(const MemoryPlan& plan, uint32_t top_k);

struct SpeedShape {
  uint32_t dense_layers = 0;  // of the pass, repetitions counted
  uint32_t moe_layers = 0;
  uint32_t top_k = 0;
  uint32_t experts = 0;  // of a layer
  GpuShares shares = {};
  uint64_t row_bytes = 0;  // of a row that crosses the link
};

/// One token's decode.
struct DecodeEstimate {
  double hit_rate = 0;  // the share of its experts that are in some memory
  double seconds = 0;
  double bytes = 0;  // read for it
  // Where a GPU holds some of the experts:
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

// Where a GPU computes -------------------------------------------------------------------------------------------

/// What was measured of a machine with a GPU.
struct TierTimes {
  ComputeTimes gpu;  // of a token, or of a prompt
  LinkTimes link;
  double host_expert = 0;  // seconds that the CPU takes for one expert of one token
  ReadTimes reads;
};

/// Shares of a token's experts: the rest is in no memory.
struct TierRates {
  double vram = 0;
  double ram = 0;
};

/// Where routing is uniform: the shares that have a slot, and no expert has two.
[[nodiscard]] TierRates uniform_tier_rates(const MemoryPlan& plan);
/// As local_hit_rate: what the token before has used lies in the GPU's memory, if one token's experts have room there
/// and misses go there, else in the host's, if they have room in both.
[[nodiscard]] TierRates local_tier_rates(const MemoryPlan& plan, const MissOptions& miss);
/// So many in the GPU's memory; of the others as many in the host's as have a slot there.
[[nodiscard]] TierRates tier_rates_at(const MemoryPlan& plan, double vram);

[[nodiscard]] DecodeEstimate estimate_tiered_decode(const SpeedShape& shape, const TierTimes& times,
                                                    const MissOptions& miss, const TierRates& rates);
/// The first token of all: no memory has an expert, and what has a slot in the GPU's goes there, whatever `miss` says.
[[nodiscard]] DecodeEstimate estimate_cold_decode(const SpeedShape& shape, const MemoryPlan& plan,
                                                  const TierTimes& times, const MissOptions& miss);

/// With what it costs a token that layers stream.
[[nodiscard]] DecodeEstimate with_streamed_layers(DecodeEstimate decode, const SpeedShape& shape,
                                                  const MemoryPlan& plan, const TierTimes& times);

/// A prompt. Where the GPU holds all experts it only computes; else into empty memory, and everything goes through the
/// GPU. `times.gpu`: of a pass of `measured_rows`; longer chunks are scaled.
[[nodiscard]] PrefillEstimate estimate_gpu_prefill(const SpeedShape& shape, const MemoryPlan& plan,
                                                   const TierTimes& times, uint32_t measured_rows, uint32_t tokens);

/// Seconds until a GPU that holds all of the model has it.
[[nodiscard]] double estimate_loading(const MemoryPlan& plan, const TierTimes& times);

}  // namespace dspack::runtime
