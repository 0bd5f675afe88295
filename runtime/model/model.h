// A model: its always-needed weights, and the pass of a batch of tokens through all layers. A conversation's state is
// in its Sequence, the working memory of passes in a Scratch; both are made here and owned by the caller, so
// conversations can share a model, and a pass. A pass gives each row the bits that it would have alone (kernels/ops.h:
// exact mode).
// Threads: one pass at a time. Lifetime: borrows device, queue, files and executor. Errors of loading: those of finding
// and reading weights, budget. Errors of running: the executor's, those of reading embedding rows, cancelled.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/model/embedding.h"
#include "runtime/model/layer_store.h"
#include "runtime/model/route_predictor.h"
#include "runtime/model/sequence.h"

namespace dspack::runtime {

struct ModelOptions {
  uint32_t context = 4096;         // positions per sequence
  uint32_t max_rows = 4096;        // longest pass; V3: 3 x 28 kB of activations per row, in memory over all layers
  uint32_t wave_rows = 256;        // rows per run of attention and MLPs; V3: 0.7 MB of scratch per row
  Dtype kv_dtype = Dtype::f32;     // KV cache: f32 (exact), bf16, f16 or f8_e4m3
  Dtype index_dtype = Dtype::f32;  // keys of sparse attention's indexer: same types
  /// The layers in the order of the pass; a repeated layer is loaded once. Empty: all layers, once each.
  std::vector<LayerId> layer_map = {};
  LayerStreaming streaming = {};  // for layers that memory has no room for
  bool drafts_in_blocks = false;  // passes keep what the stages of ModelConfig::dspark read

  [[nodiscard]] AttentionOptions attention() const {
    return {.cache_dtype = kv_dtype, .index_dtype = index_dtype, .wave_rows = wave_rows, .max_rows = max_rows};
  }
};

/// A pass's results, FP32, by token in the order of the batch. They are in the scratch memory until its next pass.
struct HiddenStates {
  kernels::Rows residual;  // [tokens, Residual::width], after the last layer
  kernels::Rows final;     // [tokens, hidden], after the final norm: what the output head reads
};

/// Progress of passes, readable from any thread. Not updated by recorded passes.
struct PassState {
  std::atomic<uint64_t> layers_begun{0};  // total over all passes
  std::atomic<bool> reads_layer{false};   // the pass is waiting for a streamed layer
};

/// Working memory of a model's passes, one pass at a time.
class Scratch {
 public:
  [[nodiscard]] uint64_t size_bytes() const { return buffer_->size_bytes(); }
  /// Increases with every pass and every call of logits(), which overwrite earlier results.
  [[nodiscard]] uint64_t generation() const { return generation_; }
  /// Time by stage of all passes in this memory. nullptr: the device runs operations after their calls return.
  [[nodiscard]] StageClock* stages() const { return stages_.get(); }
  /// Thread-safe.
  [[nodiscard]] const PassState& state() const { return *state_; }

 private:
  friend class Model;
  Scratch(std::unique_ptr<kernels::Buffer> buffer, std::unique_ptr<kernels::Buffer> forecast)
      : buffer_(std::move(buffer)), forecast_(std::move(forecast)) {}

  std::unique_ptr<kernels::Buffer> buffer_;
  std::unique_ptr<kernels::Buffer> forecast_;  // host memory: RoutePredictor's results
  std::unique_ptr<StageClock> stages_;
  std::unique_ptr<PassState> state_ = std::make_unique<PassState>();
  uint64_t generation_ = 0;
  std::vector<uint32_t> tokens_;  // the present batch's
  std::vector<PassPart> parts_;
};

/// Tokens that a pass appends to a sequence.
struct SequenceTokens {
  Sequence& sequence;
  std::span<const uint32_t> tokens;  // at least one, all below the vocabulary's size, with room in the cache
};

/// Operations on a pass's final states that are enqueued, and recorded, with the pass. Call order in a pass: prepare(),
/// enqueue() unless a recording runs, collect().
class PassEnd {
 public:
  virtual ~PassEnd() = default;
  /// Not 0. Equal numbers mean the same operations.
  [[nodiscard]] virtual uint32_t number() const = 0;
  /// Before the operations run: uploads their inputs.
  virtual void prepare() = 0;
  /// Enqueues the operations, without uploads, downloads or synchronising.
  virtual void enqueue(const kernels::Rows& final) = 0;
  /// After the operations: downloads their results, into memory that lives until the pass's queue is synchronised.
  virtual void collect() = 0;
};

struct PassOptions {
  /// Receives the modules of the pass. Layers are named by their place in the pass, as in a checkpoint in which
  /// repeated layers are physically copied.
  Trace* trace = nullptr;
  PassEnd* end = nullptr;  // only in passes of at most kMaxRecordedRows rows
};

/// load(), then make_scratch() once and make_sequence() per conversation; then any number of passes: forward() appends
/// tokens to sequences, logits() or score() turns its final states into logits.
class Model {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Model>> load(const LoadContext& context, const ModelConfig& config,
                                                           const ModelOptions& options, ExpertExecutor& executor,
                                                           const std::stop_token& stop);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  /// Capacity of each sequence, in positions.
  [[nodiscard]] uint32_t context() const { return options_.context; }
  /// Most tokens of one pass.
  [[nodiscard]] uint32_t max_rows() const { return options_.max_rows; }
  /// Layers in the order of the pass.
  [[nodiscard]] const std::vector<LayerId>& layer_map() const { return options_.layer_map; }
  /// The caller of forward() first tells it the purpose of the pass (begin_pass).
  [[nodiscard]] ExpertExecutor& experts() const { return executor_; }
  [[nodiscard]] kernels::Queue& queue() const { return queue_; }
  [[nodiscard]] kernels::Device& device() const { return device_; }
  /// Call before using downloaded results: they are invalid if the device has failed. Errors: the device's failure.
  [[nodiscard]] Result<void> check_device() const;

  [[nodiscard]] Result<Scratch> make_scratch() const;
  enum class Drafting { none, mtp };
  /// An empty sequence. `drafting`: whether it keeps state for the MTP module.
  [[nodiscard]] Result<Sequence> make_sequence(Drafting drafting = Drafting::none) const;

  /// Appends tokens to sequences, each of which occurs once; in all at most max_rows. After an error other than the
  /// device's failure the sequences are as before, or empty if their caches have rings that the pass may have
  /// overwritten.
  [[nodiscard]] Result<HiddenStates> forward(std::span<const SequenceTokens> batch, Scratch& scratch,
                                             const std::stop_token& stop, const PassOptions& options = {}) const;
  [[nodiscard]] Result<HiddenStates> forward(const SequenceTokens& part, Scratch& scratch, const std::stop_token& stop,
                                             const PassOptions& options = {}) const {
    return forward(std::span(&part, 1), scratch, stop, options);
  }

  /// Logits of final hidden states: FP32 [rows, vocab] into host memory. Waits for the queue.
  void logits(const kernels::Rows& final, const Linear& head, Scratch& scratch, std::span<float> into,
              Trace* trace = nullptr) const;
  /// Enqueues the logits of at most kMaxRecordedRows final states, into score_rows.
  void score(const kernels::Rows& final, const Linear& head, const Scratch& scratch) const;
  [[nodiscard]] kernels::Rows score_rows(const Scratch& scratch, uint32_t rows) const;
  /// Place of a pass's final states: [rows, hidden].
  [[nodiscard]] kernels::Rows final_rows(const Scratch& scratch, uint32_t rows) const;
  [[nodiscard]] const Linear& head() const { return head_; }

  /// For a module that follows the last layer (mtp.h).
  [[nodiscard]] const Embedding& embedding() const { return *embedding_; }
  /// The residual stream of a pass, FP32 [rows, Residual::width], rows up to max_rows.
  [[nodiscard]] kernels::Rows residual_rows(const Scratch& scratch, uint32_t rows) const;
  /// The final norm's input, made from rows of the residual stream: [rows, hidden], in `place` or in the stream. `mix`:
  /// weights of the streams' end, the model's or a module's (empty for a plain residual).
  [[nodiscard]] kernels::Rows end_of(const kernels::Rows& stream, const MixWeights& mix, const Scratch& scratch,
                                     const kernels::Rows& place) const;
  /// The final norm: residual -> final. They may be the same rows. Only for a plain residual.
  void normalise(const kernels::Rows& residual, const kernels::Rows& final) const;
  [[nodiscard]] AttentionOptions attention() const { return options_.attention(); }
  struct FurtherLayers {
    std::span<const std::unique_ptr<LayerWeights>> weights;
    const KvCache& cache;    // has these layers
    RecordedPass& recorded;  // used with these layers and this cache only
    ChoiceUse choice = ChoiceUse::as_needed;
    bool is_block = false;  // PassPart
  };
  /// Runs layers in place on `hidden`, the first residual rows; the caller advances the layers' cache. The executor
  /// sees a separate pass, of drafted rows only. After an error `hidden` is undefined.
  [[nodiscard]] Result<void> run_further_layers(const FurtherLayers& layers, const kernels::Rows& hidden,
                                                Scratch& scratch, const std::stop_token& stop) const;
  /// Stores each layer's keys of rows x [rows, hidden], at most wave_rows, in the cache, without attending; the caller
  /// advances it.
  void remember(const FurtherLayers& layers, const kernels::Rows& x, Scratch& scratch) const;
  /// Turns rows of the residual stream, whose first `hidden` values are embeddings, into a first layer's input.
  void begin_stream(const kernels::Rows& stream) const { runner_.residual().begin(queue_, stream); }

  /// AttentionBlock::Input::scratch of passes in this memory.
  [[nodiscard]] kernels::Slice attention_scratch(Scratch& scratch) const {
    return runner_.attention_scratch(*scratch.buffer_);
  }

  [[nodiscard]] uint64_t weight_bytes() const;  // always-needed weights
  /// Work of a pass: of its layers without routed experts, and of the head. The embedding is read by rows.
  [[nodiscard]] WeightWork layer_work() const { return layers_->work(); }
  [[nodiscard]] WeightWork head_work() const { return head_work_; }
  [[nodiscard]] uint64_t table_bytes() const { return position_memory_->size_bytes(); }
  /// Shape of a sequence's KV cache, without the MTP module's.
  [[nodiscard]] KvShape kv_shape() const;
  [[nodiscard]] uint64_t cache_bytes() const;  // a sequence's KV cache, without the MTP module's state

  /// Bytes of activations and tables of a model with these options; reads nothing.
  [[nodiscard]] static uint64_t scratch_bytes_for(const ModelConfig& config, const ModelOptions& options);
  /// Bytes of the output head and the norm before it. Errors: those of finding them.
  [[nodiscard]] static Result<uint64_t> head_bytes(const LoadContext& context, const ModelConfig& config);

 private:
  Model(const LoadContext& context, const ModelConfig& config, const ModelOptions& options, ExpertExecutor& executor);
  Result<void> load_weights(const LoadContext& context, const std::stop_token& stop);
  Result<void> make_position_tables();
  [[nodiscard]] PositionTables tables() const;
  /// Starts a pass over the batch: puts its tokens and parts into `scratch`. Returns the number of rows.
  uint32_t begin_batch(std::span<const SequenceTokens> batch, Scratch& scratch) const;
  struct Pass {
    kernels::Rows stream;
    std::span<const PassPart> parts;
    Scratch& scratch;
    Trace* trace = nullptr;
  };
  /// The mean of the streams after the layer at place `index` of the pass, if stages read it.
  void keep_for_stages(uint32_t index, const Pass& pass) const;
  /// The rows of a pass that a module for drafts reads: [rows, MtpState::width].
  [[nodiscard]] kernels::Rows rows_for_drafts(const Scratch& scratch, uint32_t rows) const;
  Result<const LayerWeights*> weights_at(uint32_t index, const Scratch& scratch, const std::stop_token& stop) const;
  /// Enqueues all layers and the final norm; makes forecasts for an executor that wants them.
  Result<void> run_layers(const Pass& pass, const std::stop_token& stop) const;
  /// Whether passes of a few rows can be recorded: they enqueue the same operations every time and never block.
  [[nodiscard]] bool can_record() const;
  [[nodiscard]] kernels::Rows rows_at(const Scratch& scratch, uint64_t offset, uint32_t rows, uint32_t cols) const;
  [[nodiscard]] kernels::Slice position_in(const Scratch& scratch) const;
  /// Empty if no layer finds experts by token.
  [[nodiscard]] kernels::Slice tokens_in(const Scratch& scratch) const;
  /// Gives the executor a forecast of the experts that the next MoE layer after place `index` of the pass will need.
  /// `weights`: those of the layer at `index`.
  void foresee(uint32_t index, const LayerWeights& weights, Scratch& scratch, const kernels::Rows& stream,
               const kernels::Rows& shared) const;
  /// Announces to the executor the experts of layers that find them by token: from place `first` of the pass on, up to
  /// a layer that is not in memory. `weights`: those of the layer at place `index`, which is about to run. Returns the
  /// place at which it stopped.
  uint32_t announce(uint32_t first, uint32_t index, const LayerWeights& weights, const Scratch& scratch) const;

  kernels::Device& device_;
  kernels::Queue& queue_;
  ExpertExecutor& executor_;
  ModelConfig config_;
  ModelOptions options_;
  ScratchPlan plan_;  // layout of every Scratch
  struct Places {
    uint64_t residual = 0, logits = 0, position = 0;
    uint64_t tokens = 0;                           // only if layers find experts by token
    uint64_t stream_means = 0, stream_shares = 0;  // only with ModelOptions::drafts_in_blocks
  };
  static Places lay_out(const ModelConfig& config, const ModelOptions& options, ScratchPlan& plan);
  Places at_;
  LayerRunner runner_;
  RoutePredictor predictor_;

  std::optional<Embedding> embedding_;
  std::unique_ptr<LayerStore> layers_;
  std::unique_ptr<kernels::Buffer> head_memory_;
  kernels::Slice final_norm_;  // [hidden]
  MixWeights end_mix_;         // mixed residual only
  Linear head_;                // [vocab, hidden]
  WeightWork head_work_;
  std::unique_ptr<kernels::Buffer> position_memory_;  // memory of tables()
};

}  // namespace dspack::runtime
