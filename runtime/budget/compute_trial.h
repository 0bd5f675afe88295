// How long this machine takes for a model's operations: one layer of each kind, with weights of the right shapes and
// types that hold zeros. Nothing of the weights is read.
// Threads: single-thread. Lifetime: borrows what the LoadContext borrows for the call. Errors: those of finding
// weights, budget (no memory for the trial), cancelled.
#pragma once

#include "runtime/model/model.h"

namespace dspack::runtime {

/// A pass, as far as its time depends on it.
struct TrialPass {
  uint32_t rows = 1;      // tokens
  uint32_t position = 0;  // of the first
};

/// Seconds, medians of several turns through more memory than caches hold.
struct ComputeTimes {
  double dense_layer = 0;   // 0: the pass has none
  double moe_layer = 0;     // all but the routed experts
  double experts = 0;       // the routed experts of one layer, all in memory, routed at random
  double distinct = 0;      // how many experts these are
  double head = 0;          // logits of one row
  double expert_bytes = 0;  // of one slot
};

/// Memory that a trial takes at most, or one layer and one expert where those are more. It is given back.
inline constexpr uint64_t kTrialBytes = 256ULL << 20;

/// `options`: layer map, KV cache's type.
[[nodiscard]] Result<ComputeTimes> time_compute(const LoadContext& context, const ModelConfig& config,
                                                const ModelOptions& options, const TrialPass& pass,
                                                const std::stop_token& stop);

}  // namespace dspack::runtime
