// One decoder layer: its always-needed weights, and the pass of many tokens through it.
// Threads: single-thread. Lifetime: the weights own their memory and borrow the configuration; the runner borrows its
// arguments. Errors: those of finding and reading weights; the executor's.
#pragma once

#include <memory>

#include "runtime/model/attention_block.h"
#include "runtime/model/moe.h"
#include "runtime/model/residual.h"
#include "runtime/model/stage_clock.h"

namespace dspack::runtime {

struct LayerWeights {
  LayerId id;
  std::unique_ptr<kernels::Buffer> memory;
  kernels::Slice attention_norm;  // [hidden]
  kernels::Slice mlp_norm;        // [hidden]
  MixWeights attention_mix;       // mixed residual only, as the next one
  MixWeights mlp_mix;
  std::unique_ptr<AttentionBlock> attention;
  MoeWeights moe;  // empty in a dense layer
  MlpWeights mlp;  // empty in a MoE layer
  WeightWork work;
};

/// Finds all always-needed weights of a layer without reading them, except a table of experts by token
/// (load_experts_by_token). `weights` must not move until the group is loaded or bound.
[[nodiscard]] Result<WeightGroup> find_layer(const LoadContext& context, const ModelConfig& config,
                                             const AttentionOptions& attention, LayerId id, LayerWeights& weights);

/// Finds and loads a layer's always-needed weights, a table of experts by token included.
[[nodiscard]] Result<std::unique_ptr<LayerWeights>> load_layer(const LoadContext& context, const ModelConfig& config,
                                                               const AttentionOptions& attention, LayerId id,
                                                               const std::stop_token& stop);

class LayerRunner {
 public:
  /// Reserves scratch for passes of `max_rows` tokens, in waves of attention.wave_rows through attention and MLPs.
  /// `attention`: that of the layers that will be run.
  LayerRunner(const ModelConfig& config, const AttentionOptions& attention, uint32_t max_rows, ScratchPlan& plan);

  struct Context {
    kernels::Queue& queue;
    kernels::Buffer& scratch;
    ExpertExecutor& executor;
    const std::stop_token& stop;
    TraceScope trace = {};         // the layer's scope, "model.layers.3"
    StageClock* stages = nullptr;  // null: time is not measured
    /// Called in a MoE layer while its experts are being loaded, with the known parts of its output: the residual
    /// stream after attention, and the shared expert's output (no rows: none).
    std::function<void(const kernels::Rows& stream, const kernels::Rows& shared)> meanwhile = {};
  };
  struct Input {
    kernels::Rows stream;             // [rows, Residual::width]; changed in place
    std::span<const PassPart> parts;  // the sequences that the rows belong to
    kernels::Slice tokens = {};       // u32 [rows], if the layer finds experts by token
    uint32_t layer = 0;               // index in the pass, as in the caches
    PositionTables tables;
    ChoiceUse choice = ChoiceUse::as_needed;
  };
  [[nodiscard]] Result<void> run(const Context& context, const LayerWeights& weights, const Input& input) const;

  [[nodiscard]] const Residual& residual() const { return *residual_; }
  /// AttentionBlock::Input::scratch.
  [[nodiscard]] kernels::Slice attention_scratch(kernels::Buffer& scratch) const {
    return {.buffer = &scratch, .offset_bytes = attention_at_};
  }
  /// Offset in the scratch buffer of [max_rows, hidden] values that are free between two runs.
  [[nodiscard]] uint64_t idle_rows_at() const { return normalised_at_; }

 private:
  void attend(const Context& context, const LayerWeights& weights, const Input& input) const;
  void join(const Residual::Context& mix, const kernels::Rows& stream, const kernels::Rows& output) const;
  /// Runs a dense layer's MLP: into y, or adds to `sum` if that has rows.
  void run_mlp(const Context& context, const LayerWeights& weights, const kernels::Rows& x, const kernels::Rows& y,
               const kernels::Rows& sum, const TraceScope& module) const;
  [[nodiscard]] kernels::Rows rows_at(kernels::Buffer& scratch, uint64_t place, uint32_t rows) const;

  const ModelConfig& config_;
  uint32_t wave_rows_;
  std::unique_ptr<Residual> residual_;
  uint64_t attention_at_;  // in the scratch buffer, as the next ones
  Mlp mlp_;
  Moe moe_;
  uint64_t normalised_at_, output_at_;  // [max_rows, hidden] each
};

}  // namespace dspack::runtime
