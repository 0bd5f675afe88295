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
  const std::string name = names::layer(id);
  WeightGroup group(context);
  TRY(group.add_vector(&weights.attention_norm, name + ".input_layernorm.weight", config.hidden));
  TRY(group.add_vector(&weights.mlp_norm, name + ".post_attention_layernorm.weight", config.hidden));
  TRY(weights.attention->add_weights(group, name));
  if (config.is_moe(id)) {
    TRY(add_moe(group, weights.moe, config, name));
  } else {
    TRY(add_mlp(group, weights.mlp, name + ".mlp", config.hidden, config.dense_inner));
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
  return weights;
}

namespace {

// The widest MLP that a layer runs itself; routed experts belong to the executor.
uint32_t widest_mlp(const ModelConfig& config) {
  return std::max(config.dense_inner, config.shared_experts * config.expert_inner);
}

/// Weights that take a layer's second norm. (Experts are rounded for as their shared one is.)
std::vector<kernels::Weight> readers_of_mlp(const LayerWeights& weights) {
  if (weights.moe.router.empty()) return {weights.mlp.gate.weight(), weights.mlp.up.weight()};
  std::vector<kernels::Weight> readers = {weights.moe.router.weight()};
  if (!weights.moe.shared.gate.empty()) readers.push_back(weights.moe.shared.gate.weight());
  return readers;
}

bool keeps_choices(const ModelConfig& config) {
  return config.indexer && (!config.indexer->shared.empty() || config.indexer->drafts_share);
}

// Rows whose choices of positions are kept at once.
uint64_t choice_rows(const ModelConfig& config, uint32_t max_rows, uint32_t wave_rows) {
  if (!config.indexer) return 0;
  return keeps_choices(config) ? max_rows : wave_rows;
}

}  // namespace

LayerRunner::LayerRunner(const ModelConfig& config, const AttentionOptions& attention, uint32_t max_rows,
                         ScratchPlan& plan)
    : config_(config),
      wave_rows_(attention.wave_rows),
      attention_at_(plan.add(ceil_div(make_attention(config, attention, LayerId(0))->scratch_bytes(), sizeof(float)))),
      mlp_(widest_mlp(config), wave_rows_, plan),
      moe_(config, max_rows, wave_rows_, plan),
      normalised_at_(plan.add(uint64_t{max_rows} * config.hidden)),
      output_at_(plan.add(uint64_t{max_rows} * config.hidden)),
      chosen_at_(plan.add(choice_rows(config, max_rows, wave_rows_) * (config.indexer ? config.indexer->most : 0))),
      chosen_counts_at_(plan.add(choice_rows(config, max_rows, wave_rows_))) {}

kernels::Choice LayerRunner::choice_in(kernels::Buffer& scratch, uint32_t first) const {
  if (!config_.indexer) return {};
  const kernels::Choice all{.ids = {.buffer = &scratch, .offset_bytes = chosen_at_},
                            .counts = {.buffer = &scratch, .offset_bytes = chosen_counts_at_},
                            .most = config_.indexer->most};
  return choice_of_rows(all, keeps_choices(config_) ? first : 0);
}

void LayerRunner::choose_first(kernels::Queue& queue, kernels::Buffer& scratch, uint32_t rows,
                               uint32_t positions) const {
  if (!config_.indexer) return;
  const kernels::Choice all = choice_in(scratch, 0);
  std::vector<uint32_t> ids(all.most);
  std::iota(ids.begin(), ids.end(), 0U);
  const uint32_t count = std::min(positions, all.most);
  for (uint32_t row = 0; row < rows; ++row) {
    const kernels::Choice one = choice_of_rows(all, row);
    queue.upload(one.ids, std::as_bytes(std::span(ids)));
    queue.upload(one.counts, std::as_bytes(std::span(&count, 1)));
  }
  queue.synchronize();
}

void LayerRunner::pass_on_choice(kernels::Queue& queue, kernels::Buffer& scratch, uint32_t row) const {
  DSPACK_CHECK(keeps_choices(config_), "this model's choices are not kept");
  const kernels::Choice to = choice_in(scratch, 0);
  const kernels::Choice from = choice_in(scratch, row);
  queue.copy(to.ids, from.ids, uint64_t{to.most} * sizeof(uint32_t));
  queue.copy(to.counts, from.counts, sizeof(uint32_t));
}

// hidden += attention(norm(hidden)), a wave of rows at a time: a row sees only rows of its sequence before it, and
// those are in the cache.
void LayerRunner::attend(const Context& context, const LayerWeights& weights, const Input& input) const {
  for (uint32_t first = 0; first < input.hidden.rows; first += wave_rows_) {
    const uint32_t count = std::min(wave_rows_, input.hidden.rows - first);
    const kernels::Rows hidden = rows_of(input.hidden, first, count);
    kernels::Rows normalised = hidden;
    normalised.data = {.buffer = &context.scratch, .offset_bytes = normalised_at_};
    kernels::Rows output = hidden;
    output.data = {.buffer = &context.scratch, .offset_bytes = output_at_};
    normalise(context.queue, hidden, weights.attention_norm, config_.norm_epsilon, normalised, context.trace,
              "input_layernorm", weights.attention->readers());
    const StageScope stage(context.stages, Stage::attention);
    const TraceScope module = context.trace.child("self_attn");
    module.input(normalised);
    weights.attention->run(context.queue,
                           {.x = normalised,
                            .parts = input.parts,
                            .first_row = first,
                            .layer = input.layer,
                            .tables = input.tables,
                            .scratch = {.buffer = &context.scratch, .offset_bytes = attention_at_},
                            .choice = choice_in(context.scratch, first),
                            .use = input.choice},
                           output, hidden, module);
  }
}

Result<void> LayerRunner::run(const Context& context, const LayerWeights& weights, const Input& input) const {
  context.trace.input(input.hidden);
  attend(context, weights, input);
  kernels::Rows normalised = input.hidden;
  normalised.data = {.buffer = &context.scratch, .offset_bytes = normalised_at_};
  kernels::Rows output = input.hidden;
  output.data = {.buffer = &context.scratch, .offset_bytes = output_at_};
  normalise(context.queue, input.hidden, weights.mlp_norm, config_.norm_epsilon, normalised, context.trace,
            "post_attention_layernorm", readers_of_mlp(weights));
  const TraceScope module = context.trace.child("mlp");
  module.input(normalised);
  if (config_.is_moe(weights.id)) {
    Moe::Context block{.queue = context.queue,
                       .scratch = context.scratch,
                       .executor = context.executor,
                       .mlp = mlp_,
                       .stop = context.stop,
                       .trace = module,
                       .stages = context.stages};
    if (context.meanwhile) {
      block.meanwhile = [&](const kernels::Rows& shared) { context.meanwhile(input.hidden, shared); };
    }
    TRY(moe_.run(block, weights.id, weights.moe, normalised, output, input.hidden));
  } else if (!module.on()) {
    const StageScope stage(context.stages, Stage::mlp);
    for (uint32_t first = 0; first < normalised.rows; first += wave_rows_) {
      const uint32_t count = std::min(wave_rows_, normalised.rows - first);
      context.queue.add_mlp(
          mlp_.args(context.scratch, weights.mlp, rows_of(normalised, first, count), rows_of(output, first, count)),
          rows_of(input.hidden, first, count));
    }
  } else {
    const StageScope stage(context.stages, Stage::mlp);
    for (uint32_t first = 0; first < normalised.rows; first += wave_rows_) {
      const uint32_t count = std::min(wave_rows_, normalised.rows - first);
      mlp_.run(context.queue, context.scratch, weights.mlp, rows_of(normalised, first, count),
               rows_of(output, first, count), module);
    }
    module.output(output);
    context.queue.add(input.hidden, output);
  }
  context.trace.output(input.hidden);
  return {};
}

}  // namespace dspack::runtime
