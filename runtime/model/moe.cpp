#include "runtime/model/moe.h"

#include <fmt/format.h>

#include <algorithm>

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

Result<void> add_moe(WeightGroup& group, MoeWeights& weights, const ModelConfig& config, LayerId layer) {
  const std::string mlp = fmt::format("{}.{}", config.names->layer(layer), config.names->mlp);
  TRY(add_router(group, weights.router, config, layer, mlp));
  if (config.shared_experts == 0) return {};
  return add_mlp(group, weights.shared, config, mlp + ".shared_experts", config.shared_experts * config.expert_inner);
}

Moe::Moe(const ModelConfig& config, uint32_t max_rows, uint32_t wave_rows, ScratchPlan& plan)
    : config_(config),
      router_(config),
      wave_rows_(wave_rows),
      logits_at_(plan.add(uint64_t{wave_rows} * config.experts)),
      ids_at_(plan.add(uint64_t{max_rows} * config.top_k)),
      weights_at_(plan.add(uint64_t{max_rows} * config.top_k)),
      shared_at_(plan.add(uint64_t{config.shared_experts == 0 ? 0 : max_rows} * config.hidden)) {}

void Moe::route(const Context& context, const MoeWeights& weights, const kernels::Rows& x) const {
  const StageScope stage(context.stages, Stage::router);
  const auto place = [&](uint64_t offset) {
    return kernels::Slice{.buffer = &context.scratch, .offset_bytes = offset};
  };
  for (uint32_t first = 0; first < x.rows; first += wave_rows_) {
    const uint32_t count = std::min(wave_rows_, x.rows - first);
    const uint64_t chosen = uint64_t{first} * config_.top_k * sizeof(float);
    router_.route(context.queue, weights.router, rows_of(x, first, count),
                  context.tokens.empty() ? context.tokens : context.tokens.at(first * sizeof(uint32_t)),
                  {.logits = place(logits_at_), .ids = place(ids_at_ + chosen), .weights = place(weights_at_ + chosen)},
                  context.trace);
  }
}

void Moe::run_shared(const Context& context, const MlpWeights& weights, const kernels::Rows& x,
                     const kernels::Rows& y) const {
  const StageScope stage(context.stages, Stage::mlp);
  const TraceScope module = context.trace.child("shared_experts");
  for (uint32_t first = 0; first < x.rows; first += wave_rows_) {
    const uint32_t count = std::min(wave_rows_, x.rows - first);
    module.input(rows_of(x, first, count));
    context.mlp.run(context.queue, context.scratch, weights, rows_of(x, first, count), rows_of(y, first, count),
                    module);
    module.output(rows_of(y, first, count));
  }
}

kernels::Rows Moe::shared_rows(const Context& context, uint32_t rows) const {
  return {.data = {.buffer = &context.scratch, .offset_bytes = shared_at_},
          .rows = rows,
          .cols = config_.hidden,
          .stride = config_.hidden};
}

Result<void> Moe::run_whole(const Context& context, LayerId layer, const MoeWeights& weights, const kernels::Rows& x,
                            const kernels::Rows& y, const kernels::Rows& residual) const {
  RoutedTokens tokens{.layer = layer,
                      .x = x,
                      .ids = {.buffer = &context.scratch, .offset_bytes = ids_at_},
                      .weights = {.buffer = &context.scratch, .offset_bytes = weights_at_}};
  tokens.rest.emplace();
  tokens.rest->residual = residual;
  if (!weights.shared.gate.empty())
    tokens.rest->shared = context.mlp.args(context.scratch, weights.shared, x, shared_rows(context, x.rows));
  return context.executor.run(tokens, y, context.stop);
}

Result<void> Moe::run(const Context& context, LayerId layer, const MoeWeights& weights, const kernels::Rows& x,
                      const kernels::Rows& y, const kernels::Rows& residual) const {
  route(context, weights, x);
  const StageScope stage(context.stages, Stage::experts);
  // A trace reports modules one at a time, so nothing may overlap.
  const bool is_watched = context.trace.on();
  if (!is_watched && !context.meanwhile && context.executor.takes_rest() && x.rows <= wave_rows_ && residual.rows > 0)
    return run_whole(context, layer, weights, x, y, residual);
  const bool has_shared = !weights.shared.gate.empty();
  const kernels::Rows shared = shared_rows(context, x.rows);
  const auto other_work = [&] {
    if (has_shared) run_shared(context, weights.shared, x, shared);
    const StageScope prediction(context.stages, Stage::other);
    if (context.meanwhile) context.meanwhile(has_shared ? shared : kernels::Rows{});
  };
  const TraceScope experts = context.trace.child("experts");
  experts.input(x);
  TRY(context.executor.run({.layer = layer,
                            .x = x,
                            .ids = {.buffer = &context.scratch, .offset_bytes = ids_at_},
                            .weights = {.buffer = &context.scratch, .offset_bytes = weights_at_},
                            .trace = experts,
                            .meanwhile = is_watched ? std::function<void()>() : other_work},
                           y, context.stop));
  experts.output(y);
  if (is_watched) other_work();
  if (has_shared) context.queue.add(y, shared);
  context.trace.output(y);
  if (residual.rows > 0) context.queue.add(residual, y);
  return {};
}

}  // namespace dspack::runtime
