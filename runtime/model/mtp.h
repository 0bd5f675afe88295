// The multi-token prediction (MTP) module of the DeepSeek-V3 family: one further decoder layer that foretells the token
// after the next one. Row i reads the embedding of token i+1 and the main model's hidden state of position i:
//   z = eh_proj [enorm(embedding(i+1)) ; hnorm(hidden(i))],  y = decoder layer(z),  logits = head(shared_head.norm(y)).
// It has a KV cache of its own, which must hold every past position. The main model's residuals that it has not read
// yet are kept here (FP32 [context, hidden] at most), so that it can catch up in one batch when drafting starts.
//
// Which hidden state it reads is a setting (MtpHidden); the released configurations do not say. Embedding and head are
// stored again in released checkpoints; they are taken from the main model when they are equal or absent. The embedding
// is never loaded, but read by rows. Source: vLLM deepseek_mtp.py and SGLang deepseek_nextn.py (embedding first),
// transformers' MtpModel. Threads: single-thread. Lifetime: borrows the model, its scratch memory included, and what
// the LoadContext borrows. Errors: load: those of finding and reading weights, budget; run: the executor's, those of
// reading embedding rows, cancelled.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>

#include "runtime/model/model.h"

namespace dspack::runtime {

/// The hidden state that the module reads: after or before the main model's final norm; and in a chain of drafts, its
/// own output after or before shared_head.norm.
enum class MtpHidden { post_norm, pre_norm };

class MtpModule {
 public:
  /// Whether config.json announces a module and the checkpoint holds it.
  [[nodiscard]] static bool is_present(const format::Checkpoint& checkpoint, const ModelConfig& config);

  [[nodiscard]] static Result<std::unique_ptr<MtpModule>> load(const LoadContext& context, Model& model,
                                                               const std::stop_token& stop);

  /// What it would take with such a context, nothing read. A head of its own counts unless digests say that it is the
  /// model's. Errors: those of finding weights; budget.
  [[nodiscard]] static Result<uint64_t> bytes_for(const LoadContext& context, const ModelConfig& config,
                                                  uint32_t positions, Dtype cache_dtype);

  /// Positions that its cache holds.
  [[nodiscard]] uint32_t length() const { return cache_.length(); }
  /// Positions that the main model has passed since: length() + pending() is the main model's.
  [[nodiscard]] uint32_t pending() const { return pending_; }

  /// Keeps the residuals that a pass of the main model has just left. Precondition: every pass is shown.
  void observe(const kernels::Rows& residual);
  /// The main model's cache was cut to `length` positions. Where that cuts into positions that the module has read,
  /// the last one left stays as it was read, with the token that then followed: it can make a draft worse, never an
  /// answer.
  void truncate(uint32_t length);

  /// Called with rows of the module's output (FP32 [rows, hidden], before shared_head.norm), `first` counted from the
  /// first pending position.
  using RowsCallback = std::function<void(uint32_t first, const kernels::Rows& rows)>;
  /// Reads all pending positions at once; next[i] is the token that follows pending position i. After it `last` is the
  /// output of the last one. After an error the module is as before. Precondition: something is pending.
  [[nodiscard]] Result<void> catch_up(std::span<const uint32_t> next, MtpHidden hidden, const std::stop_token& stop,
                                      const RowsCallback& on_rows = {});
  /// Like the last catch_up again, for a second look at the same positions: they are pending as before.
  void undo_catch_up();

  /// Reads one position more, from its own last output and the drafted `token`. Precondition: room in the cache.
  [[nodiscard]] Result<void> chain(uint32_t token, MtpHidden hidden, const std::stop_token& stop);
  /// The last output, [1, hidden]; valid until the next call of this or of the model.
  [[nodiscard]] const kernels::Rows& last() const { return last_; }

  /// Logits of outputs: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& outputs, std::span<float> into);
  /// Of one output the token with the highest logit, as Model::likeliest.
  [[nodiscard]] std::optional<uint32_t> likeliest(const kernels::Rows& output);

  [[nodiscard]] LayerId layer() const { return layer_->id; }
  [[nodiscard]] bool shares_head() const { return head_ == nullptr; }
  [[nodiscard]] bool shares_embedding() const { return !embedding_; }
  [[nodiscard]] uint64_t weight_bytes() const;
  [[nodiscard]] uint64_t scratch_bytes() const { return scratch_->size_bytes(); }  // residuals included
  [[nodiscard]] uint64_t cache_bytes() const { return cache_.size_bytes(); }
  /// What loading has read, a comparison of head tensors included.
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_; }

 private:
  MtpModule(const LoadContext& context, Model& model, KvCache cache);
  struct Own {
    kernels::Slice embedding_norm;  // enorm [hidden]
    kernels::Slice hidden_norm;     // hnorm [hidden]
    kernels::Slice output_norm;     // shared_head.norm [hidden]
    Linear projection;              // eh_proj [hidden, 2 * hidden]
  };
  [[nodiscard]] static Result<WeightGroup> find_own(const LoadContext& context, const ModelConfig& config, Own& own);
  struct Places {
    uint64_t residuals = 0, pairs = 0;  // [context, hidden], [wave, 2 * hidden]
    uint64_t position = 0;              // of a recorded pass
    uint64_t size_bytes = 0;
  };
  [[nodiscard]] static Places lay_out(const ModelConfig& config, uint32_t positions);
  Result<void> load_weights(const LoadContext& context, const std::stop_token& stop);
  Result<void> share_or_load_head(const LoadContext& context, const std::stop_token& stop);
  Result<void> choose_embedding(const LoadContext& context);

  [[nodiscard]] kernels::Rows place(uint64_t offset, uint32_t rows, uint32_t cols) const;
  Result<void> project(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                       const std::stop_token& stop);

  kernels::Queue& queue_;
  Model& model_;
  std::unique_ptr<LayerWeights> layer_;
  std::unique_ptr<kernels::Buffer> own_memory_;  // norms and eh_proj
  Own own_;
  std::unique_ptr<kernels::Buffer> head_memory_;
  std::unique_ptr<Linear> head_;        // absent: the model's
  std::optional<Embedding> embedding_;  // absent: the model's
  KvCache cache_;
  std::unique_ptr<kernels::Buffer> scratch_;
  Places at_;                             // in scratch_
  std::optional<RecordedPass> recorded_;  // of the layer
  uint32_t pending_ = 0;
  uint32_t caught_up_ = 0;  // positions of the last catch_up
  kernels::Rows last_;
  uint64_t bytes_read_ = 0;
};

}  // namespace dspack::runtime
