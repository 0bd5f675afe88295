// One decoder layer: its always-needed weights, and the pass of many tokens through it.
// Threads: single-thread. Lifetime: the weights own their memory and borrow the configuration; the runner borrows what
// it is given. Errors: those of finding and reading weights; the executor's.
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
  MixWeights attention_mix;       // of a mixed residual, as the next one
  MixWeights mlp_mix;
  std::unique_ptr<AttentionBlock> attention;
  MoeWeights moe;  // of a MoE layer, else empty
  MlpWeights mlp;  // of a dense layer, else empty
  WeightWork work;
};

/// Everything of a layer that every token needs, found but not read, but for a table of experts by token. `weights`
/// stays where it is until the group is loaded or bound.
[[nodiscard]] Result<WeightGroup> find_layer(const LoadContext& context, const ModelConfig& config,
                                             const AttentionOptions& attention, LayerId id, LayerWeights& weights);

/// Loads it.
[[nodiscard]] Result<std::unique_ptr<LayerWeights>> load_layer(const LoadContext& context, const ModelConfig& config,
                                                               const AttentionOptions& attention, LayerId id,
                                                               const std::stop_token& stop);

class LayerRunner {
 public:
  /// Reserves scratch for passes of `max_rows` tokens that go through attention and MLPs attention.wave_rows at a time;
  /// `attention` is that of the layers that will be run.
  LayerRunner(const ModelConfig& config, const AttentionOptions& attention, uint32_t max_rows, ScratchPlan& plan);

  struct Context {
    kernels::Queue& queue;
    kernels::Buffer& scratch;
    ExpertExecutor& executor;
    const std::stop_token& stop;
    TraceScope trace = {};         // of the layer, "model.layers.3"
    StageClock* stages = nullptr;  // absent: nobody asks where time goes
    /// Called in a MoE layer while its experts are on their way, with what is known of its output: the residual stream
    /// after attention, and the shared expert's output (no rows: none).
    std::function<void(const kernels::Rows& stream, const kernels::Rows& shared)> meanwhile = {};
  };
  struct Input {
    kernels::Rows stream;                   // [rows, Residual::width]; changed in place
    std::span<const PassPart> parts;        // the sequences that the rows belong to
    std::span<const uint32_t> tokens = {};  // of the rows, where the layer finds its experts by them
    uint32_t layer = 0;                     // in the pass, as the caches count
    PositionTables tables;
    ChoiceUse choice = ChoiceUse::as_needed;
  };
  [[nodiscard]] Result<void> run(const Context& context, const LayerWeights& weights, const Input& input) const;

  [[nodiscard]] const Residual& residual() const { return *residual_; }
  /// AttentionBlock::Input::scratch.
  [[nodiscard]] kernels::Slice attention_scratch(kernels::Buffer& scratch) const {
    return {.buffer = &scratch, .offset_bytes = attention_at_};
  }
  /// Place in the scratch buffer of [max_rows, hidden] that is free between two runs.
  [[nodiscard]] uint64_t idle_rows_at() const { return normalised_at_; }

 private:
  void attend(const Context& context, const LayerWeights& weights, const Input& input) const;
  void join(const Residual::Context& mix, const kernels::Rows& stream, const kernels::Rows& output) const;
  /// Of a dense layer: into y, or added to `sum`, if that has rows.
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
