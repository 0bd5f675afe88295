// Predicts how fast a plan will run, from measurements of the machine. Layers run one after the other; each takes
// attention, router, shared experts and the time of schedule.h for its routed experts: those in place are computed
// while misses are copied, or computed by the CPU, and experts in no memory are read first. Averaged over the places
// that a token's experts may be in. Misses are divided between link and CPU so that a layer ends earliest, unless --dev
// miss says otherwise. A run on the CPU is one whose link takes no time. Threads: pure functions on plain values.
// Errors: none.
#pragma once

#include "runtime/budget/compute_trial.h"
#include "runtime/budget/link_trial.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/budget/read_trial.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

/// How a layer's experts are divided among several GPUs. The defaults are for one GPU.
struct GpuShares {
  double busiest_of_token = 1;  // share of a token's experts on the GPU that has most of them, on average
  double busiest = 1;           // largest share of all experts on one GPU
  double further = 0;           // share of all experts on further GPUs, to which rows cross the link
};
/// In proportion to their slots. A token's experts fall on GPUs at random.
[[nodiscard]] GpuShares gpu_shares(const MemoryPlan& plan, uint32_t top_k);

/// The properties of a pass that speed depends on.
struct SpeedShape {
  uint32_t dense_layers = 0;  // in the pass, repetitions counted
  uint32_t moe_layers = 0;
  uint32_t top_k = 0;
  uint32_t experts = 0;  // per layer
  GpuShares shares = {};
  uint64_t row_bytes = 0;  // size of a row that crosses the link
};

/// The estimate for decoding one token.
struct DecodeEstimate {
  double hit_rate = 0;  // share of its experts that are in any memory
  double seconds = 0;
  double bytes = 0;  // read for it
  // If a GPU holds some of the experts:
  double vram_hit_rate = 0;  // share in the GPU's memory
  double link_bytes = 0;     // copied to the GPU
  double host_bytes = 0;     // size of the experts that the CPU computes
  [[nodiscard]] double tokens_per_second() const { return seconds > 0 ? 1 / seconds : 0; }
};
[[nodiscard]] DecodeEstimate estimate_decode(const SpeedShape& shape, const MemoryPlan& plan,
                                             const ComputeTimes& compute, const ReadTimes& reads, double hit_rate);

/// The hit rate under uniform routing: whatever the policy, the share of experts that have a slot.
[[nodiscard]] double uniform_hit_rate(const MemoryPlan& plan);

/// Published runs re-use 18 to 43 % of the previous token's experts. The hit rate if this share is re-used, from slots
/// that the previous token has just filled, and the rest is uniform; with fewer slots than one token's experts nothing
/// is re-used.
inline constexpr double kReusedShare = 0.3;
[[nodiscard]] double local_hit_rate(const MemoryPlan& plan);

/// The estimate for a prompt that begins with empty memory.
struct PrefillEstimate {
  uint32_t tokens = 0;
  double experts = 0;  // read; an expert counts again for each chunk that needs it
  double bytes = 0;
  double seconds = 0;
  double link_bytes = 0;  // copied to a GPU that holds some
};
/// `compute`: for a pass of `measured_rows`; longer chunks are scaled.
[[nodiscard]] PrefillEstimate estimate_prefill(const SpeedShape& shape, const MemoryPlan& plan,
                                               const ComputeTimes& compute, uint32_t measured_rows,
                                               const ReadTimes& reads, uint32_t tokens);

/// Distinct experts of a layer that `rows` tokens are routed to, under uniform routing.
[[nodiscard]] double distinct_experts(const SpeedShape& shape, uint32_t rows);

// With a GPU ---------------------------------------------------------------------------------------------------

/// Measurements of a machine with a GPU.
struct TierTimes {
  ComputeTimes gpu;  // for a token, or for a prompt
  LinkTimes link;
  double host_expert = 0;  // seconds of the CPU for one expert of one token
  ReadTimes reads;
};

/// Shares of a token's experts; the rest is in no memory.
struct TierRates {
  double vram = 0;
  double ram = 0;
};

/// Under uniform routing: the shares that have a slot, and no expert has two.
[[nodiscard]] TierRates uniform_tier_rates(const MemoryPlan& plan);
/// Like local_hit_rate: the previous token's experts are in the GPU's memory, if one token's experts have room there
/// and misses go there, else in the host's, if they have room in both.
[[nodiscard]] TierRates local_tier_rates(const MemoryPlan& plan, const MissOptions& miss);
/// `vram` in the GPU's memory; of the others, the share that has a slot in the host's.
[[nodiscard]] TierRates tier_rates_at(const MemoryPlan& plan, double vram);

[[nodiscard]] DecodeEstimate estimate_tiered_decode(const SpeedShape& shape, const TierTimes& times,
                                                    const MissOptions& miss, const TierRates& rates);
/// The very first token: no memory has an expert. If the GPUs have slots for one token's experts, all go there,
/// whatever `miss` says.
[[nodiscard]] DecodeEstimate estimate_cold_decode(const SpeedShape& shape, const MemoryPlan& plan,
                                                  const TierTimes& times, const MissOptions& miss);

/// Adds the cost per token of streaming layers.
[[nodiscard]] DecodeEstimate with_streamed_layers(DecodeEstimate decode, const SpeedShape& shape,
                                                  const MemoryPlan& plan, const TierTimes& times);

/// A prompt. If the GPU holds all experts it only computes; else memory is empty at first, and everything goes through
/// the GPU. `times.gpu`: for a pass of `measured_rows`; longer chunks are scaled.
[[nodiscard]] PrefillEstimate estimate_gpu_prefill(const SpeedShape& shape, const MemoryPlan& plan,
                                                   const TierTimes& times, uint32_t measured_rows, uint32_t tokens);

/// Seconds until a GPU that holds all of the model is loaded.
[[nodiscard]] double estimate_loading(const MemoryPlan& plan, const TierTimes& times);

}  // namespace dspack::runtime
