// The multi-token prediction (MTP) module of the DeepSeek-V3 family: one further decoder layer that predicts the token
// after the next one. Row i reads the embedding of token i+1 and the main model's hidden state of position i:
//   z = eh_proj [enorm(embedding(i+1)) ; hnorm(hidden(i))],  y = decoder layer(z),  logits = head(shared_head.norm(y)).
// DeepSeek-V4's (April's) reads each residual stream j by itself, and has its own mixture at the end:
//   z_j = e_proj enorm(embedding(i+1)) + h_proj hnorm(stream_j(i)),  logits = head(norm(mixture(y))).
//
// Which hidden state it reads is a setting (MtpHidden), since released configurations do not define it. Released
// checkpoints store embedding and head again; the main model's are used if these are equal or absent. The embedding
// is not loaded, but read by rows. Source: vLLM deepseek_mtp.py and SGLang deepseek_nextn.py (embedding first),
// transformers' MtpModel; DeepSeek-V4 inference/model.py of April, class MTPBlock.
#pragma once

#include "runtime/model/draft_module.h"

namespace dspack::runtime {

/// catch_up() returns the output of the last position, from which logits() or head() give the first draft; chain() with
/// each draft returns the next output. draft() does all of it.
class MtpModule final : public DraftModule {
 public:
  /// Called with rows of the module's output (FP32 [rows, Residual::width], before its end), `first` counted from the
  /// first pending position.
  using RowsCallback = std::function<void(uint32_t first, const kernels::Rows& rows)>;
  [[nodiscard]] Result<kernels::Rows> catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                               MtpHidden hidden, const std::stop_token& stop) const override {
    return catch_up(sequence, scratch, next, hidden, stop, {});
  }
  [[nodiscard]] Result<kernels::Rows> catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                               MtpHidden hidden, const std::stop_token& stop,
                                               const RowsCallback& on_rows) const;
  /// Reads one more position, from the output `last` of the position before and the drafted `token`; returns its
  /// output, [1, Residual::width], valid for as long. Precondition: nothing is pending, and the cache has room.
  [[nodiscard]] Result<kernels::Rows> chain(Sequence& sequence, Scratch& scratch, const kernels::Rows& last,
                                            uint32_t token, MtpHidden hidden, const std::stop_token& stop) const;
  [[nodiscard]] Result<std::vector<uint32_t>> draft(const Request& request) const override;

  /// Logits of outputs: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& outputs, Scratch& scratch, std::span<float> into) const;
  /// The head's input for outputs, at most max_rows: after the module's norm, [rows, hidden]. Overwritten by the next
  /// call of the module.
  [[nodiscard]] kernels::Rows normalised(const kernels::Rows& outputs, const Scratch& scratch) const;
  [[nodiscard]] const Linear& head() const { return head_ ? *head_ : model_.head(); }

  [[nodiscard]] MtpHidden usual_hidden() const override {
    return model_.config().streams ? MtpHidden::streams : MtpHidden::post_norm;
  }
  [[nodiscard]] bool shares_head() const override { return head_ == nullptr; }
  [[nodiscard]] bool shares_embedding() const override { return !embedding_; }
  [[nodiscard]] uint64_t scratch_bytes() const override { return wave_->size_bytes(); }

  /// Bytes without layer and state. The module's head counts unless its digest is that of the model's head.
  [[nodiscard]] static Result<uint64_t> own_bytes(const LoadContext& context, const ModelConfig& config);

 private:
  friend class DraftModule;
  using DraftModule::DraftModule;
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
  Result<void> load_all(const LoadContext& context, const std::stop_token& stop) override;
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

  std::unique_ptr<kernels::Buffer> own_memory_;  // own_ lies in it
  Own own_;
  std::unique_ptr<kernels::Buffer> head_memory_;
  std::unique_ptr<Linear> head_;           // absent: the model's
  std::optional<Embedding> embedding_;     // absent: the model's
  std::unique_ptr<kernels::Buffer> wave_;  // FP32, a wave of inputs
};

}  // namespace dspack::runtime
