// The multi-token prediction (MTP) module of the DeepSeek-V3 family: one further decoder layer that predicts the token
// after the next one. Row i reads the embedding of token i+1 and the main model's hidden state of position i:
//   z = eh_proj [enorm(embedding(i+1)) ; hnorm(hidden(i))],  y = decoder layer(z),  logits = head(shared_head.norm(y)).
// Its KV cache and the residuals that it has not read yet belong to the sequence (MtpState), so several sequences can
// draft with one module.
//
// Which hidden state it reads is a setting (MtpHidden), since released configurations do not define it. Released
// checkpoints store embedding and head again; the main model's are used if these are equal or absent. The embedding
// is not loaded, but read by rows. Source: vLLM deepseek_mtp.py and SGLang deepseek_nextn.py (embedding first),
// transformers' MtpModel. Threads: one call at a time. Lifetime: borrows the model and what the LoadContext borrows.
// Errors: load: those of finding and reading weights, budget; run: the executor's, those of reading embedding rows,
// cancelled.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>

#include "runtime/model/model.h"

namespace dspack::runtime {

/// The hidden state that the module reads: after or before the main model's final norm; in a chain of drafts, its own
/// output after or before shared_head.norm.
enum class MtpHidden { post_norm, pre_norm };

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

  /// Called with rows of the module's output (FP32 [rows, hidden], before shared_head.norm), `first` counted from the
  /// first pending position.
  using RowsCallback = std::function<void(uint32_t first, const kernels::Rows& rows)>;
  /// Reads all pending positions of a sequence; next[i] is the token after pending position i. Returns the output of
  /// the last position, [1, hidden], valid until the next pass in `scratch`. After an error the sequence is as before.
  /// Precondition: at least one position is pending.
  [[nodiscard]] Result<kernels::Rows> catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                               MtpHidden hidden, const std::stop_token& stop,
                                               const RowsCallback& on_rows = {}) const;
  /// Reads one more position, from the output `last` of the position before and the drafted `token`; returns its
  /// output, valid for as long. Precondition: nothing is pending, and the cache has room.
  [[nodiscard]] Result<kernels::Rows> chain(Sequence& sequence, Scratch& scratch, const kernels::Rows& last,
                                            uint32_t token, MtpHidden hidden, const std::stop_token& stop) const;

  /// Logits of outputs: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& outputs, Scratch& scratch, std::span<float> into) const;
  /// The head's input for one output: after shared_head.norm, [1, hidden].
  [[nodiscard]] kernels::Rows normalised(const kernels::Rows& output) const;
  [[nodiscard]] const Linear& head() const { return head_ ? *head_ : model_.head(); }

  [[nodiscard]] LayerId layer() const { return layer_->id; }
  [[nodiscard]] bool shares_head() const { return head_ == nullptr; }
  [[nodiscard]] bool shares_embedding() const { return !embedding_; }
  [[nodiscard]] uint64_t weight_bytes() const { return weight_bytes_; }
  /// Work of a pass of the module, without routed experts but with the head that it uses.
  [[nodiscard]] WeightWork work() const { return work_; }
  [[nodiscard]] uint64_t scratch_bytes() const { return pairs_->size_bytes(); }
  /// Bytes that loading has read, a comparison of head tensors included.
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_; }

 private:
  MtpModule(const LoadContext& context, const Model& model) : queue_(context.queue), model_(model) {}
  struct Own {
    kernels::Slice embedding_norm;  // enorm [hidden]
    kernels::Slice hidden_norm;     // hnorm [hidden]
    kernels::Slice output_norm;     // shared_head.norm [hidden]
    Linear projection;              // eh_proj [hidden, 2 * hidden]
  };
  [[nodiscard]] static Result<WeightGroup> find_own(const LoadContext& context, const ModelConfig& config, Own& own);
  Result<void> load_weights(const LoadContext& context, const std::stop_token& stop);
  Result<void> share_or_load_head(const LoadContext& context, const std::stop_token& stop);
  Result<void> choose_embedding(const LoadContext& context);

  [[nodiscard]] kernels::Rows pairs(uint32_t rows, uint32_t cols) const;
  Result<void> project(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                       const std::stop_token& stop) const;

  kernels::Queue& queue_;
  const Model& model_;
  std::unique_ptr<LayerWeights> layer_;
  std::unique_ptr<kernels::Buffer> own_memory_;  // norms and eh_proj
  Own own_;
  std::unique_ptr<kernels::Buffer> head_memory_;
  std::unique_ptr<Linear> head_;            // absent: the model's
  std::optional<Embedding> embedding_;      // absent: the model's
  std::unique_ptr<kernels::Buffer> pairs_;  // FP32 [wave, 2 * hidden]
  WeightWork work_;
  uint64_t weight_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace dspack::runtime
