#include "runtime/model/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/config/config.h"

namespace dspack::runtime {

Result<WeightGroup> find_layer(const LoadContext& context, const ModelConfig& config, const AttentionOptions& attention,
                               LayerId id, LayerWeights& weights) {
  weights.id = id;
  weights.attention = make_attention(config, attention, id);
  const std::string name = config.names->layer(id) + ".";
  WeightGroup group(context);
  TRY(group.add_vector(&weights.attention_norm, name + std::string(config.names->attention_norm), config.hidden));
  TRY(group.add_vector(&weights.mlp_norm, name + std::string(config.names->mlp_norm), config.hidden));
  TRY(Residual::add_weights(group, config, weights.attention_mix, name + "hc_attn"));
  TRY(Residual::add_weights(group, config, weights.mlp_mix, name + "hc_ffn"));
  TRY(weights.attention->add_weights(group, name + std::string(config.names->attention)));
  if (config.is_moe(id)) {
    TRY(add_moe(group, weights.moe, config, id));
  } else {
    TRY(add_mlp(group, weights.mlp, config, name + std::string(config.names->mlp), config.dense_inner));
  }
  weights.work = group.work();
  return group;
}

Result<std::unique_ptr<LayerWeights>> load_layer(const LoadContext& context, const ModelConfig& config,
                                                 const AttentionOptions& attention, LayerId id,
                                                 const std::stop_token& stop) {
  auto weights = std::make_unique<LayerWeights>();
  TRY_ASSIGN(WeightGroup group, find_layer(context, config, attention, id, *weights));
  TRY_ASSIGN(weights->memory, group.load(WeightPurpose::always_needed, stop));
  TRY(load_experts_by_token(context, config, id, weights->moe.router, stop));
  return weights;
}

namespace {

// The widest MLP that a layer runs itself; routed experts belong to the executor.
uint32_t widest_mlp(const ModelConfig& config) {
  return std::max(config.dense_inner, config.shared_experts * config.expert_inner);
}

/// Weights that multiply the output of a layer's second norm. (Its rounding for routed experts is that for the shared
/// expert.)
std::vector<kernels::Weight> readers_of_mlp(const LayerWeights& weights) {
  if (weights.moe.router.scores.empty()) return {weights.mlp.gate.weight(), weights.mlp.up.weight()};
  std::vector<kernels::Weight> readers = {weights.moe.router.scores.weight()};
  if (!weights.moe.shared.gate.empty()) readers.push_back(weights.moe.shared.gate.weight());
  return readers;
}

}  // namespace

LayerRunner::LayerRunner(const ModelConfig& config, const AttentionOptions& attention, uint32_t max_rows,
                         ScratchPlan& plan)
    : config_(config),
      wave_rows_(attention.wave_rows),
      residual_(Residual::make(config, max_rows, plan)),
      attention_at_(plan.add(ceil_div(attention_scratch_bytes(config, attention), sizeof(float)))),
      mlp_(widest_mlp(config), wave_rows_, plan),
      moe_(config, max_rows, wave_rows_, plan),
      normalised_at_(plan.add(uint64_t{max_rows} * config.hidden)),
      output_at_(plan.add(uint64_t{max_rows} * config.hidden)) {}

// Adds attention(norm(input read from the stream)) to the stream, a wave of rows at a time: a row attends only to
// earlier rows of its sequence, which are in the cache.
void LayerRunner::attend(const Context& context, const LayerWeights& weights, const Input& input) const {
  for (uint32_t first = 0; first < input.stream.rows; first += wave_rows_) {
    const uint32_t count = std::min(wave_rows_, input.stream.rows - first);
    const kernels::Rows stream = rows_of(input.stream, first, count);
    const kernels::Rows normalised = rows_at(context.scratch, normalised_at_, count);
    const kernels::Rows output = rows_at(context.scratch, output_at_, count);
    const Residual::Context mix{
        .queue = context.queue, .mix = residual_->mix_in(context.scratch, first), .weights = weights.attention_mix};
    normalise(context.queue, residual_->read(mix, stream, normalised), weights.attention_norm, config_.norm_epsilon,
              normalised, context.trace, "input_layernorm", weights.attention->readers());
    const StageScope stage(context.stages, Stage::attention);
    const TraceScope module = context.trace.child("self_attn");
    module.input(normalised);
    weights.attention->run(context.queue,
                           {.x = normalised,
                            .parts = input.parts,
                            .first_row = first,
                            .layer = input.layer,
                            .tables = input.tables,
                            .scratch = attention_scratch(context.scratch),
                            .use = input.choice},
                           output, residual_->sum_of(stream), module);
    join(mix, stream, output);
  }
}

// Only for a mixed stream: blocks add to a plain one themselves.
void LayerRunner::join(const Residual::Context& mix, const kernels::Rows& stream, const kernels::Rows& output) const {
  if (residual_->sum_of(stream).rows == 0) residual_->join(mix, stream, output);
}

kernels::Rows LayerRunner::rows_at(kernels::Buffer& scratch, uint64_t place, uint32_t rows) const {
  return {.data = {.buffer = &scratch, .offset_bytes = place},
          .rows = rows,
          .cols = config_.hidden,
          .stride = config_.hidden};
}

void LayerRunner::run_mlp(const Context& context, const LayerWeights& weights, const kernels::Rows& x,
                          const kernels::Rows& y, const kernels::Rows& sum, const TraceScope& module) const {
  const StageScope stage(context.stages, Stage::mlp);
  for (uint32_t first = 0; first < x.rows; first += wave_rows_) {
    const uint32_t count = std::min(wave_rows_, x.rows - first);
    const kernels::Rows from = rows_of(x, first, count);
    const kernels::Rows to = rows_of(y, first, count);
    if (module.on() || sum.rows == 0) {
      mlp_.run(context.queue, context.scratch, weights.mlp, from, to, module);
    } else {
      context.queue.add_mlp(mlp_.args(context.scratch, weights.mlp, from, to), rows_of(sum, first, count));
    }
  }
  if (!module.on()) return;
  module.output(y);
  if (sum.rows > 0) context.queue.add(sum, y);
}

Result<void> LayerRunner::run(const Context& context, const LayerWeights& weights, const Input& input) const {
  context.trace.input(input.stream);
  attend(context, weights, input);
  const kernels::Rows normalised = rows_at(context.scratch, normalised_at_, input.stream.rows);
  const kernels::Rows output = rows_at(context.scratch, output_at_, input.stream.rows);
  const Residual::Context mix{
      .queue = context.queue, .mix = residual_->mix_in(context.scratch, 0), .weights = weights.mlp_mix};
  normalise(context.queue, residual_->read(mix, input.stream, normalised), weights.mlp_norm, config_.norm_epsilon,
            normalised, context.trace, "post_attention_layernorm", readers_of_mlp(weights));
  const kernels::Rows sum = residual_->sum_of(input.stream);
  const TraceScope module = context.trace.child("mlp");
  module.input(normalised);
  if (config_.is_moe(weights.id)) {
    Moe::Context block{.queue = context.queue,
                       .scratch = context.scratch,
                       .executor = context.executor,
                       .mlp = mlp_,
                       .stop = context.stop,
                       .trace = module,
                       .stages = context.stages,
                       .tokens = input.tokens};
    if (context.meanwhile) {
      block.meanwhile = [&](const kernels::Rows& shared) { context.meanwhile(input.stream, shared); };
    }
    TRY(moe_.run(block, weights.id, weights.moe, normalised, output, sum));
  } else {
    run_mlp(context, weights, normalised, output, sum, module);
  }
  join(mix, input.stream, output);
  context.trace.output(input.stream);
  return {};
}

}  // namespace dspack::runtime
