// A model in memory: always-needed weights, KV cache, and the pass of a chunk of tokens through all layers. All memory
// but that of routed experts is allocated by `load`. Threads: single-thread. Lifetime: borrows device, queue, files and
// executor. Errors of loading: those of finding and reading weights, budget. Errors of running: the executor's, those
// of reading embedding rows, cancelled.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/model/config.h"
#include "runtime/model/embedding.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/layer_store.h"
#include "runtime/model/route_predictor.h"

namespace dspack::runtime {

struct ModelOptions {
  uint32_t context = 4096;   // positions of the KV cache
  uint32_t max_rows = 4096;  // longest chunk; its activations (V3: 3 x 28 kB a row) stay in memory layer by layer
  uint32_t wave_rows = 256;  // rows in attention and MLPs at once; V3: 0.7 MB of scratch a row
  AttentionForm attention = AttentionForm::absorbed;
  Dtype kv_dtype = Dtype::f32;  // of the KV cache: f32 (exact), bf16, f16 or f8_e4m3
  /// The layers in the order in which a token passes them; one that comes twice is loaded once. Empty: all, once each.
  std::vector<LayerId> layer_map = {};
  LayerStreaming streaming = {};  // layers that memory has no room for
};

/// What a pass leaves of its tokens, FP32 [tokens, hidden] each, valid until the next call.
struct HiddenStates {
  kernels::Rows residual;  // after the last layer, before the final norm
  kernels::Rows final;     // after the final norm: what the output head reads
};

/// Watches a forward pass: called with the residual stream after the embedding (no layer) and after each layer of the
/// pass, counted from 0.
using ForwardObserver = std::function<void(std::optional<uint32_t> index, const kernels::Rows& hidden)>;

/// How the token behind a pass is drawn, and by which number in [0, 1).
struct TokenDraw {
  kernels::SampleSettings settings;
  double uniform = 0;
  [[nodiscard]] bool operator==(const TokenDraw&) const = default;
};

class Model {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Model>> load(const LoadContext& context, const ModelConfig& config,
                                                           const ModelOptions& options, ExpertExecutor& executor,
                                                           const std::stop_token& stop);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] KvCache& cache() { return *cache_; }
  [[nodiscard]] uint32_t max_rows() const { return options_.max_rows; }
  /// What `logits`, `likeliest` and `drawn` gave is worth nothing where the device has failed meanwhile. Errors: its
  /// failure.
  [[nodiscard]] Result<void> check_device() const {
    if (const auto failed = queue_.failure()) return *failed;
    return {};
  }
  /// Whoever runs a pass tells it what the pass is for.
  [[nodiscard]] ExpertExecutor& experts() { return executor_; }

  /// Layers in the order of the pass.
  [[nodiscard]] const std::vector<LayerId>& layer_map() const { return options_.layer_map; }

  /// Appends `tokens` (1 to max_rows, all below vocab, with room in the cache). After an error the cache is as before.
  /// `draw`: what `drawn` is going to be asked of a pass of one token, which a device that draws then does at once.
  [[nodiscard]] Result<HiddenStates> forward(std::span<const uint32_t> tokens, const std::stop_token& stop,
                                             const ForwardObserver& observer = {},
                                             const std::optional<TokenDraw>& draw = std::nullopt);

  /// Tells `trace` of the modules of every pass from now on, until it is called with null. Layers are named by their
  /// place in the pass: as in a checkpoint in which repeated layers are physically copied.
  void set_trace(Trace* trace) { trace_ = trace; }

  /// Logits of some final hidden states: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& final, std::span<float> into);
  /// Of final hidden states the tokens with the highest logits, the lowest of equals, where the device can tell for
  /// less than the logits cost. Nullopt: look at the logits; they lie in the host's memory, are not all finite, or
  /// there are more than kMostRecordedRows.
  [[nodiscard]] std::optional<std::vector<uint32_t>> likeliest(const kernels::Rows& final);
  /// Likewise of one state the token that `draw` names, the one that the sampler would draw from the logits.
  [[nodiscard]] std::optional<uint32_t> drawn(const kernels::Rows& final, const TokenDraw& draw);

  /// For a module that goes on where the pass ends (mtp.h). It borrows the scratch memory of the pass: what is here
  /// overwrites the last HiddenStates.
  [[nodiscard]] const Embedding& embedding() const { return *embedding_; }
  [[nodiscard]] const Linear& head() const { return head_; }
  /// FP32 [rows, hidden], rows up to max_rows.
  [[nodiscard]] kernels::Rows workspace(uint32_t rows) const;
  /// The final norm: residual -> final. They may be the same rows.
  void normalise(const kernels::Rows& residual, const kernels::Rows& final);
  struct FurtherLayer {
    const LayerWeights& weights;
    const KvCache& cache;    // of one layer
    RecordedPass& recorded;  // of this layer alone
  };
  /// Runs one layer in place on `hidden`, the first rows of the workspace; it does not advance the layer's cache. A
  /// pass of its own, of drafted rows alone, for the experts. After an error `hidden` is undefined.
  [[nodiscard]] Result<void> run_further_layer(const FurtherLayer& layer, const kernels::Rows& hidden,
                                               const std::stop_token& stop);
  /// As `logits` and `likeliest`, with another head.
  void logits(const kernels::Rows& final, const Linear& head, std::span<float> into);
  [[nodiscard]] std::optional<std::vector<uint32_t>> likeliest(const kernels::Rows& final, const Linear& head);

  [[nodiscard]] uint64_t weight_bytes() const;   // always-needed weights
  [[nodiscard]] uint64_t scratch_bytes() const;  // activations and tables, without the cache

  /// What a model with these options would take; nothing is read.
  [[nodiscard]] static uint64_t scratch_bytes_for(const ModelConfig& config, const ModelOptions& options);
  /// Of the output head and the norm before it. Errors: those of finding them.
  [[nodiscard]] static Result<uint64_t> head_bytes(const LoadContext& context, const ModelConfig& config);

 private:
  enum class Choice { highest, drawn };
  /// Enqueues logits of some final states and the choice of each; of one state only, if it is drawn.
  void score(const kernels::Rows& final, const Linear& head, Choice choice);
  void choose(const kernels::Rows& logits, Choice choice);
  void upload(const TokenDraw& draw);
  [[nodiscard]] std::vector<uint32_t> chosen(uint32_t first, uint32_t rows);
  /// The first of the pass's rows that `final` is, if all of them have been scored and lie there still.
  [[nodiscard]] std::optional<uint32_t> scored_at(const kernels::Rows& final) const;
  [[nodiscard]] kernels::Rows logits_at(uint32_t first, uint32_t rows) const;

  Model(const LoadContext& context, const ModelConfig& config, const ModelOptions& options, ExpertExecutor& executor);
  Result<void> load_weights(const LoadContext& context, const std::stop_token& stop);
  Result<void> allocate();
  /// Enqueues all layers and the final norm. `observer` and forecasts only at a known position.
  Result<void> run_layers(const kernels::Rows& hidden, const PassPosition& position, const std::stop_token& stop,
                          const ForwardObserver& observer);
  /// Whether passes of a few rows are the same operations every time and wait for nothing.
  [[nodiscard]] bool can_record() const;
  [[nodiscard]] bool can_draw() const;
  [[nodiscard]] kernels::Rows rows_at(uint64_t offset, uint32_t rows) const;
  /// Tells the executor what the MoE layer that follows place `index` of the pass is likely to want.
  void foresee(uint32_t index, const kernels::Rows& residual, const kernels::Rows& shared);

  kernels::Device& device_;
  kernels::Queue& queue_;
  ExpertExecutor& executor_;
  ModelConfig config_;
  ModelOptions options_;
  Trace* trace_ = nullptr;
  uint32_t scored_rows_ = 0;       // of the last pass, whose logits are on the device: a recorded pass ends with them
  std::optional<TokenDraw> draw_;  // that made the choice among them; absent: the highest was chosen
  ScratchPlan plan_;
  struct Places {
    uint64_t residual = 0, logits = 0, cos_sin = 0, position = 0, choice = 0, draw = 0;
  };
  static Places lay_out(const ModelConfig& config, const ModelOptions& options, ScratchPlan& plan);
  static LayerRunner make_runner(const ModelConfig& config, const ModelOptions& options, ScratchPlan& plan);
  Places at_;  // in scratch_
  LayerRunner runner_;
  RoutePredictor predictor_;

  std::optional<Embedding> embedding_;
  std::unique_ptr<LayerStore> layers_;
  std::unique_ptr<kernels::Buffer> head_memory_;
  kernels::Slice final_norm_;  // [hidden]
  Linear head_;                // [vocab, hidden]
  std::optional<KvCache> cache_;
  std::unique_ptr<kernels::Buffer> scratch_;
  std::optional<RecordedPass> recorded_;          // all layers, the final norm, and where it pays the choice
  std::optional<RecordedPass> recorded_drawing_;  // the same with a choice that is drawn
};

}  // namespace dspack::runtime
