// The multi-token prediction (MTP) module of the DeepSeek-V3 family: one further decoder layer that predicts the token
// after the next one. Row i reads the embedding of token i+1 and the main model's hidden state of position i:
//   z = eh_proj [enorm(embedding(i+1)) ; hnorm(hidden(i))],  y = decoder layer(z),  logits = head(shared_head.norm(y)).
// DeepSeek-V4's (April's) reads each residual stream j by itself, and has its own mixture at the end:
//   z_j = e_proj enorm(embedding(i+1)) + h_proj hnorm(stream_j(i)),  logits = head(norm(mixture(y))).
// Its KV cache and the residuals that it has not read yet belong to the sequence (MtpState), so several sequences can
// draft with one module.
//
// Which hidden state it reads is a setting (MtpHidden), since released configurations do not define it. Released
// checkpoints store embedding and head again; the main model's are used if these are equal or absent. The embedding
// is not loaded, but read by rows. Source: vLLM deepseek_mtp.py and SGLang deepseek_nextn.py (embedding first),
// transformers' MtpModel; DeepSeek-V4 inference/model.py of April, class MTPBlock. Threads: one call at a time.
// Lifetime: borrows the model and what the LoadContext borrows. Errors: load: those of finding and reading weights,
// budget; run: the executor's, those of reading embedding rows, cancelled.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>

#include "runtime/model/model.h"

namespace dspack::runtime {

/// The hidden state that the module reads: after or before the main model's final norm; in a chain of drafts, its own
/// output after or before shared_head.norm. Only DeepSeek-V4's module reads residual streams, and it reads nothing
/// else.
enum class MtpHidden { post_norm, pre_norm, streams };

/// Drafting: catch_up() over the pending positions returns the first output, from which logits() or head() give the
/// first draft; chain() with each draft returns the next output. Then Sequence::truncate() drops the drafts.
class MtpModule {
 public:
  /// Whether config.json announces a module and the checkpoint holds it.
  [[nodiscard]] static bool is_present(const format::Checkpoint& checkpoint, const ModelConfig& config);

  [[nodiscard]] static Result<std::unique_ptr<MtpModule>> load(const LoadContext& context, const Model& model,
                                                               const std::stop_token& stop);

  /// Bytes of a module with this context, including its state of each of `sequences`; reads nothing. The module's head
  /// counts unless its digest is that of the model's head. Errors: those of finding weights; budget.
  [[nodiscard]] static Result<uint64_t> bytes_for(const LoadContext& context, const ModelConfig& config,
                                                  uint32_t positions, const AttentionOptions& attention,
                                                  uint32_t sequences);

  /// Called with rows of the module's output (FP32 [rows, Residual::width], before its end), `first` counted from the
  /// first pending position.
  using RowsCallback = std::function<void(uint32_t first, const kernels::Rows& rows)>;
  /// Reads all pending positions of a sequence; next[i] is the token after pending position i. Returns the output of
  /// the last position, [1, Residual::width], valid until the next pass in `scratch`. After an error the sequence is as
  /// before, or with fewer positions pending. Preconditions: at least one position is pending; `hidden` is one that
  /// this module can read.
  [[nodiscard]] Result<kernels::Rows> catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                               MtpHidden hidden, const std::stop_token& stop,
                                               const RowsCallback& on_rows = {}) const;
  /// Reads one more position, from the output `last` of the position before and the drafted `token`; returns its
  /// output, valid for as long. Precondition: nothing is pending, and the cache has room.
  [[nodiscard]] Result<kernels::Rows> chain(Sequence& sequence, Scratch& scratch, const kernels::Rows& last,
                                            uint32_t token, MtpHidden hidden, const std::stop_token& stop) const;

  /// Logits of outputs: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& outputs, Scratch& scratch, std::span<float> into) const;
  /// The head's input for outputs, at most max_rows: after the module's norm, [rows, hidden]. Overwritten by the next
  /// call of the module.
  [[nodiscard]] kernels::Rows normalised(const kernels::Rows& outputs, const Scratch& scratch) const;
  [[nodiscard]] const Linear& head() const { return head_ ? *head_ : model_.head(); }

  /// The hidden state that it reads unless another one is asked for.
  [[nodiscard]] MtpHidden usual_hidden() const {
    return model_.config().streams ? MtpHidden::streams : MtpHidden::post_norm;
  }
  [[nodiscard]] LayerId layer() const { return layer_->id; }
  [[nodiscard]] bool shares_head() const { return head_ == nullptr; }
  [[nodiscard]] bool shares_embedding() const { return !embedding_; }
  [[nodiscard]] uint64_t weight_bytes() const { return weight_bytes_; }
  /// Work of a pass of the module, without routed experts but with the head that it uses.
  [[nodiscard]] WeightWork work() const { return work_; }
  [[nodiscard]] uint64_t scratch_bytes() const { return wave_->size_bytes(); }
  /// Bytes that loading has read, a comparison of head tensors included.
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_; }

 private:
  MtpModule(const LoadContext& context, const Model& model) : queue_(context.queue), model_(model) {}
  struct Own {
    kernels::Slice embedding_norm;  // enorm [hidden]
    kernels::Slice hidden_norm;     // hnorm [hidden]
    kernels::Slice output_norm;     // shared_head.norm [hidden]
    Linear projection;              // eh_proj [hidden, 2 * hidden]
    Linear of_embedding;            // e_proj [hidden, hidden], for streams, as the next two
    Linear of_hidden;               // h_proj [hidden, hidden]
    MixWeights end_mix;
  };
  [[nodiscard]] static Result<WeightGroup> find_own(const LoadContext& context, const ModelConfig& config, Own& own);
  Result<void> load_weights(const LoadContext& context, const std::stop_token& stop);
  Result<void> share_or_load_head(const LoadContext& context, const std::stop_token& stop);
  Result<void> choose_embedding(const LoadContext& context);

  /// Rows in the memory for a wave of inputs: [rows, cols], after `at` values of each row of a whole wave.
  [[nodiscard]] kernels::Rows wave(uint32_t rows, uint32_t cols, uint32_t at = 0) const;
  /// Embeddings after enorm.
  Result<void> embed(std::span<const uint32_t> tokens, const kernels::Rows& into, const std::stop_token& stop) const;
  /// The layer's input z: `hidden` and z [rows, Residual::width]. The others do it for a wave, without and with
  /// streams.
  Result<void> project(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                       const std::stop_token& stop) const;
  Result<void> project_pairs(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                             const std::stop_token& stop) const;
  Result<void> project_streams(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                               const std::stop_token& stop) const;

  kernels::Queue& queue_;
  const Model& model_;
  std::unique_ptr<LayerWeights> layer_;
  std::unique_ptr<kernels::Buffer> own_memory_;  // own_ lies in it
  Own own_;
  std::unique_ptr<kernels::Buffer> head_memory_;
  std::unique_ptr<Linear> head_;           // absent: the model's
  std::optional<Embedding> embedding_;     // absent: the model's
  std::unique_ptr<kernels::Buffer> wave_;  // FP32, a wave of inputs
  WeightWork work_;
  uint64_t weight_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace dspack::runtime
