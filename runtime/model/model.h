// A model: its always-needed weights, and the pass of a batch of tokens through all layers. What belongs to one
// conversation is in its Sequence, what a pass computes with in a Scratch; both are made here and owned by the caller,
// so that conversations share a model, and passes as well. A pass gives each row the bits that it would have alone
// (kernels/ops.h: exact mode).
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
  uint32_t context = 4096;         // positions of a sequence
  uint32_t max_rows = 4096;        // longest pass; its activations (V3: 3 x 28 kB a row) stay in memory layer by layer
  uint32_t wave_rows = 256;        // rows in attention and MLPs at once; V3: 0.7 MB of scratch a row
  Dtype kv_dtype = Dtype::f32;     // of the KV cache: f32 (exact), bf16, f16 or f8_e4m3
  Dtype index_dtype = Dtype::f32;  // of the keys of sparse attention's indexer, likewise
  /// The layers in the order in which a token passes them; one that comes twice is loaded once. Empty: all, once each.
  std::vector<LayerId> layer_map = {};
  LayerStreaming streaming = {};  // layers that memory has no room for

  [[nodiscard]] AttentionOptions attention() const {
    return {.cache_dtype = kv_dtype, .index_dtype = index_dtype, .wave_rows = wave_rows, .max_rows = max_rows};
  }
};

/// What a pass leaves of its tokens, FP32, in the order of the batch. It lies in the scratch memory until the next pass
/// in that memory.
struct HiddenStates {
  kernels::Rows residual;  // [tokens, Residual::width], after the last layer
  kernels::Rows final;     // [tokens, hidden], after the final norm: what the output head reads
};

/// Where the pass under way is, for who looks on from another thread. Nothing of passes that a device has recorded.
struct PassState {
  std::atomic<uint64_t> layers_begun{0};  // of all passes so far
  std::atomic<bool> reads_layer{false};   // it waits for a layer that memory has no room for
};

/// Memory that passes of a model take turns in.
class Scratch {
 public:
  [[nodiscard]] uint64_t size_bytes() const { return buffer_->size_bytes(); }
  /// Grows with every pass and every scoring, which overwrite what those before have left.
  [[nodiscard]] uint64_t generation() const { return generation_; }
  /// Where the time of all passes in this memory went. Absent: the device runs operations later than they are called.
  [[nodiscard]] StageClock* stages() const { return stages_.get(); }
  /// Thread-safe.
  [[nodiscard]] const PassState& state() const { return *state_; }

 private:
  friend class Model;
  Scratch(std::unique_ptr<kernels::Buffer> buffer, std::unique_ptr<kernels::Buffer> forecast)
      : buffer_(std::move(buffer)), forecast_(std::move(forecast)) {}

  std::unique_ptr<kernels::Buffer> buffer_;
  std::unique_ptr<kernels::Buffer> forecast_;  // of the host: what RoutePredictor finds
  std::unique_ptr<StageClock> stages_;
  std::unique_ptr<PassState> state_ = std::make_unique<PassState>();
  uint64_t generation_ = 0;
  std::vector<uint32_t> tokens_;  // of the present batch
  std::vector<PassPart> parts_;
};

/// Tokens that a pass appends to a sequence.
struct SequenceTokens {
  Sequence& sequence;
  std::span<const uint32_t> tokens;  // at least one, all below the vocabulary's size, with room in the cache
};

/// Operations on the final states of a pass that end it, so that a device records them with the pass.
class PassEnd {
 public:
  virtual ~PassEnd() = default;
  /// Not 0. Passes with equal numbers end in the same operations.
  [[nodiscard]] virtual uint32_t number() const = 0;
  /// Before the operations run: uploads what they read.
  virtual void prepare() = 0;
  /// Enqueues the operations; it uploads and downloads nothing and does not synchronise.
  virtual void enqueue(const kernels::Rows& final) = 0;
  /// Behind them: downloads what they have left, into memory that is there until the pass's queue is synchronised.
  virtual void collect() = 0;
};

struct PassOptions {
  /// Is told of the modules of the pass. Layers are named by their place in the pass: as in a checkpoint in which
  /// repeated layers are physically copied.
  Trace* trace = nullptr;
  PassEnd* end = nullptr;  // only of at most kMostRecordedRows rows
};

class Model {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Model>> load(const LoadContext& context, const ModelConfig& config,
                                                           const ModelOptions& options, ExpertExecutor& executor,
                                                           const std::stop_token& stop);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  /// Positions of each sequence.
  [[nodiscard]] uint32_t context() const { return options_.context; }
  /// Tokens of one pass at most.
  [[nodiscard]] uint32_t max_rows() const { return options_.max_rows; }
  /// Layers in the order of the pass.
  [[nodiscard]] const std::vector<LayerId>& layer_map() const { return options_.layer_map; }
  /// Whoever runs a pass tells it what the pass is for.
  [[nodiscard]] ExpertExecutor& experts() const { return executor_; }
  [[nodiscard]] kernels::Queue& queue() const { return queue_; }
  [[nodiscard]] kernels::Device& device() const { return device_; }
  /// What was computed and downloaded is worth nothing where the device has failed meanwhile. Errors: its failure.
  [[nodiscard]] Result<void> check_device() const;

  [[nodiscard]] Result<Scratch> make_scratch() const;
  enum class Drafting { none, mtp };
  /// An empty sequence. `drafting`: whether it has what the MTP module needs.
  [[nodiscard]] Result<Sequence> make_sequence(Drafting drafting = Drafting::none) const;

  /// Appends tokens to sequences, each of which occurs once; in all at most max_rows. After an error the sequences are
  /// as before, or empty where their caches have rings that the pass may have written over.
  [[nodiscard]] Result<HiddenStates> forward(std::span<const SequenceTokens> batch, Scratch& scratch,
                                             const std::stop_token& stop, const PassOptions& options = {}) const;
  [[nodiscard]] Result<HiddenStates> forward(const SequenceTokens& part, Scratch& scratch, const std::stop_token& stop,
                                             const PassOptions& options = {}) const {
    return forward(std::span(&part, 1), scratch, stop, options);
  }

  /// Logits of final hidden states: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& final, const Linear& head, Scratch& scratch, std::span<float> into,
              Trace* trace = nullptr) const;
  /// Enqueues logits of at most kMostRecordedRows final states; they will lie in score_rows.
  void score(const kernels::Rows& final, const Linear& head, const Scratch& scratch) const;
  [[nodiscard]] kernels::Rows score_rows(const Scratch& scratch, uint32_t rows) const;
  /// Where passes leave their final states: [rows, hidden].
  [[nodiscard]] kernels::Rows final_rows(const Scratch& scratch, uint32_t rows) const;
  [[nodiscard]] const Linear& head() const { return head_; }

  /// For a module that follows the last layer (mtp.h).
  [[nodiscard]] const Embedding& embedding() const { return *embedding_; }
  /// The residual stream of a pass, FP32 [rows, Residual::width], rows up to max_rows.
  [[nodiscard]] kernels::Rows residual_rows(const Scratch& scratch, uint32_t rows) const;
  /// The final norm: residual -> final. They may be the same rows.
  void normalise(const kernels::Rows& residual, const kernels::Rows& final) const;
  [[nodiscard]] AttentionOptions attention() const { return options_.attention(); }
  struct FurtherLayer {
    const LayerWeights& weights;
    const KvCache& cache;    // of one layer
    RecordedPass& recorded;  // of this layer and cache alone
    ChoiceUse choice = ChoiceUse::as_needed;
  };
  /// Runs one layer in place on `hidden`, the first residual rows; it does not advance the layer's cache. A pass of its
  /// own, of drafted rows alone, for the experts. After an error `hidden` is undefined.
  [[nodiscard]] Result<void> run_further_layer(const FurtherLayer& layer, const kernels::Rows& hidden, Scratch& scratch,
                                               const std::stop_token& stop) const;

  /// AttentionBlock::Input::scratch of passes in that memory.
  [[nodiscard]] kernels::Slice attention_scratch(Scratch& scratch) const {
    return runner_.attention_scratch(*scratch.buffer_);
  }

  [[nodiscard]] uint64_t weight_bytes() const;  // always-needed weights
  /// Of a pass: its layers without routed experts; and of the head. The embedding is read by rows.
  [[nodiscard]] WeightWork layer_work() const { return layers_->work(); }
  [[nodiscard]] WeightWork head_work() const { return head_work_; }
  [[nodiscard]] uint64_t table_bytes() const { return position_memory_->size_bytes(); }
  /// Of the KV cache of a sequence, without the MTP module's.
  [[nodiscard]] KvShape kv_shape() const;
  [[nodiscard]] uint64_t cache_bytes() const;  // of a sequence, without what it keeps for the MTP module

  /// What activations and tables of a model with these options would take; nothing is read.
  [[nodiscard]] static uint64_t scratch_bytes_for(const ModelConfig& config, const ModelOptions& options);
  /// Of the output head and the norm before it. Errors: those of finding them.
  [[nodiscard]] static Result<uint64_t> head_bytes(const LoadContext& context, const ModelConfig& config);

 private:
  Model(const LoadContext& context, const ModelConfig& config, const ModelOptions& options, ExpertExecutor& executor);
  Result<void> load_weights(const LoadContext& context, const std::stop_token& stop);
  Result<void> make_position_tables();
  [[nodiscard]] PositionTables tables() const;
  /// What a pass over the batch works on: its tokens and parts, in `scratch`. Returns the number of rows.
  uint32_t begin_batch(std::span<const SequenceTokens> batch, Scratch& scratch) const;
  struct Pass {
    kernels::Rows stream;
    std::span<const PassPart> parts;
    Scratch& scratch;
    Trace* trace = nullptr;
  };
  Result<const LayerWeights*> weights_at(uint32_t index, const Scratch& scratch, const std::stop_token& stop) const;
  /// Enqueues all layers and the final norm. Forecasts only at a known position.
  Result<void> run_layers(const Pass& pass, const std::stop_token& stop) const;
  /// Whether passes of a few rows are the same operations every time and wait for nothing.
  [[nodiscard]] bool can_record() const;
  [[nodiscard]] kernels::Rows rows_at(const Scratch& scratch, uint64_t offset, uint32_t rows, uint32_t cols) const;
  [[nodiscard]] kernels::Slice position_in(const Scratch& scratch) const;
  /// Tells the executor what the MoE layer that follows place `index` of the pass, whose weights these are, is likely
  /// to want.
  void foresee(uint32_t index, const LayerWeights& weights, Scratch& scratch, const kernels::Rows& stream,
               const kernels::Rows& shared) const;
  /// Tells it what the layers that find their experts by token will want: from place `first` of the pass on, up to one
  /// whose table is not in memory. `weights`: of the layer at place `index`, which begins. Returns the place after
  /// them.
  uint32_t announce(uint32_t first, uint32_t index, const LayerWeights& weights, const Scratch& scratch) const;

  kernels::Device& device_;
  kernels::Queue& queue_;
  ExpertExecutor& executor_;
  ModelConfig config_;
  ModelOptions options_;
  ScratchPlan plan_;  // of every Scratch
  struct Places {
    uint64_t residual = 0, logits = 0, position = 0;
  };
  static Places lay_out(const ModelConfig& config, const ModelOptions& options, ScratchPlan& plan);
  Places at_;
  LayerRunner runner_;
  RoutePredictor predictor_;

  std::optional<Embedding> embedding_;
  std::unique_ptr<LayerStore> layers_;
  std::unique_ptr<kernels::Buffer> head_memory_;
  kernels::Slice final_norm_;  // [hidden]
  MixWeights end_mix_;         // of a mixed residual
  Linear head_;                // [vocab, hidden]
  WeightWork head_work_;
  std::unique_ptr<kernels::Buffer> position_memory_;  // of tables()
};

}  // namespace dspack::runtime
