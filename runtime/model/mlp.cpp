#include "runtime/model/mlp.h"

#include <fmt/format.h>

namespace dspack::runtime {

Result<void> add_mlp(WeightGroup& group, MlpWeights& weights, const ModelConfig& config, const std::string& prefix,
                     uint32_t inner) {
  const auto name = [&](size_t projection) {
    return fmt::format("{}.{}.weight", prefix, config.names->projections[projection]);
  };
  weights.limit = config.gate_limit;
  TRY(group.add_linear(&weights.gate, name(0), inner, config.hidden));
  TRY(group.add_linear(&weights.up, name(1), inner, config.hidden));
  return group.add_linear(&weights.down, name(2), config.hidden, inner);
}

Mlp::Mlp(uint32_t widest, uint32_t wave_rows, ScratchPlan& plan)
    : gate_at_(plan.add(uint64_t{widest} * wave_rows)), up_at_(plan.add(uint64_t{widest} * wave_rows)) {}

kernels::MlpArgs Mlp::args(kernels::Buffer& scratch, const MlpWeights& weights, const kernels::Rows& x,
                           const kernels::Rows& y) const {
  const uint32_t inner = weights.gate.weight().out;
  const auto rows_at = [&](uint64_t offset) {
    return kernels::Rows{
        .data = {.buffer = &scratch, .offset_bytes = offset}, .rows = x.rows, .cols = inner, .stride = inner};
  };
  return {.weights = {.gate = weights.gate.weight(),
                      .up = weights.up.weight(),
                      .down = weights.down.weight(),
                      .limit = weights.limit},
          .x = x,
          .inner = rows_at(gate_at_),
          .scratch = rows_at(up_at_),
          .y = y};
}

void Mlp::run(kernels::Queue& queue, kernels::Buffer& scratch, const MlpWeights& weights, const kernels::Rows& x,
              const kernels::Rows& y, const TraceScope& trace) const {
  const kernels::MlpArgs at = args(scratch, weights, x, y);
  if (!trace.on()) return queue.run_mlp(at);
  apply(weights.gate, queue, x, at.inner, trace, "gate_proj");
  apply(weights.up, queue, x, at.scratch, trace, "up_proj");
  queue.silu_multiply(at.inner, at.scratch, weights.limit);
  apply(weights.down, queue, at.inner, y, trace, "down_proj");
}

}  // namespace dspack::runtime
