// Measures how long this machine takes for a model's operations: one layer of each kind, with zeros in place of
// weights, in the right shapes and types. No weights are read. On a device whose memory the host cannot address a
// layer's experts are one operation, whose table repeats a few of them.
// Threads: single-thread. Lifetime: borrows what the LoadContext borrows for the call. Errors: those of finding
// weights, budget (no memory for the trial), cancelled.
#pragma once

#include "runtime/budget/turn_timer.h"
#include "runtime/model/model.h"

namespace dspack::runtime {

/// A pass, as far as its time depends on it.
struct TrialPass {
  uint32_t rows = 1;       // tokens
  uint32_t position = 0;   // of the first
  TurnTiming timing = {};  // of layers. Recorded only if such a pass can be recorded (recorded_pass.h)
  /// Experts in memory at once, at most: what a plan gives to experts also holds a trial's. At least one.
  uint64_t most_experts = UINT64_MAX;
};

/// Seconds, medians of several turns through more memory than caches hold.
struct ComputeTimes {
  double dense_layer = 0;   // 0: the pass has none
  double moe_layer = 0;     // all but the routed experts
  double experts = 0;       // the routed experts of one layer, all in memory, routed at random
  double distinct = 0;      // how many experts these are
  double head = 0;          // logits of one row
  double expert_bytes = 0;  // of one slot
  /// Bytes a second of experts' weights.
  [[nodiscard]] double expert_rate() const { return experts > 0 ? expert_bytes * distinct / experts : 0; }
};

/// Memory that a trial takes at most, or one layer and one expert where those are more. It is given back.
inline constexpr uint64_t kTrialBytes = 256ULL << 20;
/// The same of a device's own memory, whose experts are all read in one operation and whose caches are large.
inline constexpr uint64_t kDeviceTrialBytes = 1ULL << 30;

/// `options`: layer map, KV cache's type.
[[nodiscard]] Result<ComputeTimes> time_compute(const LoadContext& context, const ModelConfig& config,
                                                const ModelOptions& options, const TrialPass& pass,
                                                const std::stop_token& stop);

/// The routed experts alone.
[[nodiscard]] Result<ComputeTimes> time_experts(const LoadContext& context, const ModelConfig& config,
                                                const ModelOptions& options, const TrialPass& pass,
                                                const std::stop_token& stop);

}  // namespace dspack::runtime
