// The gated MLP of dense layers and shared experts: y = down(silu(gate x) * (up x)).
// Threads: single-thread. Lifetime: borrows weights and scratch.
#pragma once

#include <string>

#include "runtime/config/config.h"
#include "runtime/weights/scratch.h"
#include "runtime/weights/trace.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

struct MlpWeights {
  Linear gate;                      // [inner, hidden]
  Linear up;                        // [inner, hidden]
  Linear down;                      // [hidden, inner]
  float limit = kernels::kNoLimit;  // kernels::ExpertMatrices
};

/// Adds "<prefix>.gate_proj.weight" and its two siblings to the group.
[[nodiscard]] Result<void> add_mlp(WeightGroup& group, MlpWeights& weights, const ModelConfig& config,
                                   const std::string& prefix, uint32_t inner);

class Mlp {
 public:
  /// Reserves scratch for `wave_rows` tokens of MLPs up to `widest` wide.
  Mlp(uint32_t widest, uint32_t wave_rows, ScratchPlan& plan);

  /// x and y [rows, hidden]; at most wave_rows.
  void run(kernels::Queue& queue, kernels::Buffer& scratch, const MlpWeights& weights, const kernels::Rows& x,
           const kernels::Rows& y, const TraceScope& trace = {}) const;
  /// The arguments of such a run, without trace.
  [[nodiscard]] kernels::MlpArgs args(kernels::Buffer& scratch, const MlpWeights& weights, const kernels::Rows& x,
                                      const kernels::Rows& y) const;

 private:
  uint64_t gate_at_, up_at_;  // in the scratch buffer
};

}  // namespace dspack::runtime
