// A mixture-of-experts block: router, routed experts through the executor, shared expert; and the MLP that is a dense
// layer's block.
// Threads: single-thread. Lifetime: borrows weights, scratch and executor. Errors: the executor's.
// Source: DeepSeek-V3 inference/model.py, Gate and MoE.
#pragma once

#include <functional>
#include <string>

#include "runtime/config/config.h"
#include "runtime/experts/executor.h"
#include "runtime/model/router.h"
#include "runtime/model/stage_clock.h"
#include "runtime/weights/scratch.h"
#include "runtime/weights/trace.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// The gated MLP of dense layers and shared experts: y = down(silu(gate x) * (up x)).
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

struct MoeWeights {
  RouterWeights router;
  MlpWeights shared;  // empty if the model has none
};

/// Adds the always-needed weights of a MoE block to the layer's group.
[[nodiscard]] Result<void> add_moe(WeightGroup& group, MoeWeights& weights, const ModelConfig& config, LayerId layer);

class Moe {
 public:
  /// Reserves scratch for `max_rows` routed tokens, and for data of one wave at a time for `wave_rows`.
  Moe(const ModelConfig& config, uint32_t max_rows, uint32_t wave_rows, ScratchPlan& plan);

  struct Context {
    kernels::Queue& queue;
    kernels::Buffer& scratch;
    ExpertExecutor& executor;
    const Mlp& mlp;
    const std::stop_token& stop;
    TraceScope trace = {};  // the block's scope, "model.layers.3.mlp"
    StageClock* stages = nullptr;
    kernels::Slice tokens = {};  // u32 [rows], if experts may be found by token
    /// Called while experts are being loaded, after the shared expert; receives its output, or no rows.
    std::function<void(const kernels::Rows& shared)> meanwhile = {};
  };
  /// residual += the block's output for x, which a trace first finds in y. If residual has no rows: y = output. All are
  /// [rows, hidden], rows up to max_rows.
  [[nodiscard]] Result<void> run(const Context& context, LayerId layer, const MoeWeights& weights,
                                 const kernels::Rows& x, const kernels::Rows& y, const kernels::Rows& residual) const;

 private:
  void route(const Context& context, const MoeWeights& weights, const kernels::Rows& x) const;
  /// For an executor that computes the whole block in one call (takes_rest).
  [[nodiscard]] Result<void> run_whole(const Context& context, LayerId layer, const MoeWeights& weights,
                                       const kernels::Rows& x, const kernels::Rows& y,
                                       const kernels::Rows& residual) const;
  [[nodiscard]] kernels::Rows shared_rows(const Context& context, uint32_t rows) const;
  void run_shared(const Context& context, const MlpWeights& weights, const kernels::Rows& x,
                  const kernels::Rows& y) const;

  const ModelConfig& config_;
  Router router_;
  uint32_t wave_rows_;
  uint64_t logits_at_, ids_at_, weights_at_, shared_at_;  // in the scratch buffer
};

}  // namespace dspack::runtime
