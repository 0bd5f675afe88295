// How fast a plan will run where a GPU computes, from what was measured of the machine. Where the GPU holds all experts
// there is computing alone. Where it holds some, layers come one after the other, and each takes what schedule.h says:
// hits are computed while misses are copied, or computed by the CPU, and what no memory has is read first. Averaged
// over where a token's experts are, each in the GPU's memory, in the host's, or in neither. Misses are shared between
// link and CPU so that a layer ends earliest, unless --dev miss says otherwise. Threads: pure functions on plain values.
// Errors: none.
#pragma once

#include "runtime/budget/link_trial.h"
#include "runtime/budget/speed_estimate.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

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

/// A prompt. Where the GPU holds all experts it only computes; else into empty memory, and everything goes through the
/// GPU. `times.gpu`: of a pass of `measured_rows`; longer chunks are scaled.
[[nodiscard]] PrefillEstimate estimate_gpu_prefill(const SpeedShape& shape, const MemoryPlan& plan,
                                                   const TierTimes& times, uint32_t measured_rows, uint32_t tokens);

/// Seconds until a GPU that holds all of the model has it.
[[nodiscard]] double estimate_loading(const MemoryPlan& plan, const TierTimes& times);

}  // namespace dspack::runtime
