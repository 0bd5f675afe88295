// Measures how long this machine takes for a model's operations: one layer of each kind, with zeros in place of
// weights, in the right shapes and types. No weights are read. A layer's experts are one operation, whose table repeats
// a few of them.
// Threads: single-thread. Lifetime: borrows what the LoadContext borrows for the call. Errors: those of finding
// weights, budget (no memory for the trial), cancelled.
#pragma once

#include "runtime/budget/turn_timer.h"
#include "runtime/model/model.h"

namespace dspack::runtime {

/// The properties of a pass that its time depends on.
struct TrialPass {
  uint32_t rows = 1;       // tokens
  uint32_t position = 0;   // position of the first
  TurnTiming timing = {};  // how layers are timed; recorded only if such a pass can be recorded (recorded_pass.h)
  /// The most experts in memory at once, at least one: a plan's memory for experts also holds the trial's.
  uint64_t most_experts = UINT64_MAX;
  bool has_head = true;  // times the output head
};

/// Seconds: medians of several turns through more memory than caches hold.
struct ComputeTimes {
  double dense_layer = 0;   // 0: the pass has none
  double moe_layer = 0;     // without the routed experts
  double experts = 0;       // the routed experts of one layer, all in memory, routed at random
  double distinct = 0;      // how many experts these are
  double head = 0;          // logits of one row
  double expert_bytes = 0;  // bytes of one slot
  /// Bytes per second of experts' weights.
  [[nodiscard]] double expert_rate() const { return experts > 0 ? expert_bytes * distinct / experts : 0; }
};

/// The most memory that a trial takes, unless one layer and one expert take more. It is freed afterwards.
inline constexpr uint64_t kTrialBytes = 256ULL << 20;
/// The same for a device's own memory: there all experts are read in one operation, and caches are large.
inline constexpr uint64_t kDeviceTrialBytes = 1ULL << 30;

/// `options`: layer map, KV cache's type.
[[nodiscard]] Result<ComputeTimes> time_compute(const LoadContext& context, const ModelConfig& config,
                                                const ModelOptions& options, const TrialPass& pass,
                                                const std::stop_token& stop);

/// Times the routed experts alone.
[[nodiscard]] Result<ComputeTimes> time_experts(const LoadContext& context, const ModelConfig& config,
                                                const ModelOptions& options, const TrialPass& pass,
                                                const std::stop_token& stop);

}  // namespace dspack::runtime
