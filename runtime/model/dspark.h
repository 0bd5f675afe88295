// DSpark, by which DeepSeek-V4's models since July draft a block of tokens at once: a few further layers (stages) run
// one after the other over
//   x = embedding of [last token, noise, noise, ..], as many rows as the block has tokens,
// each of whose rows attends to the whole block, and to a window of positions before it. Keys of that window are not
// those of the block's past, but each stage's own of main_x = main_norm(main_proj [mean of the streams after layer a ;
// after layer b ; ..]), which the main model leaves at every position. After the last stage
//   logits of row i = head(norm(mixture_i)) + markov_w2 markov_w1[token before draft i]
// so drafts are chosen one after the other, and confidence_head [mixture_i ; markov_w1[..]] estimates (as a logit)
// whether draft i is accepted if all before it are.
//
// Sources: DeepSeek-V4 inference/model.py of July, classes DSparkBlock, DSparkAttention, DSparkMarkovHead; SGLang
// deepseek_v4_dspark.py (the estimate's meaning).
#pragma once

#include <algorithm>

#include "runtime/model/draft_module.h"

namespace dspack::runtime {

class DsparkModule final : public DraftModule {
 public:
  [[nodiscard]] Result<kernels::Rows> catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                               MtpHidden hidden, const std::stop_token& stop) const override;
  [[nodiscard]] Result<std::vector<uint32_t>> draft(const Request& request) const override;

  [[nodiscard]] uint32_t drafts_at_once() const override { return most_drafts(*model_.config().dspark); }
  [[nodiscard]] MtpHidden usual_hidden() const override { return MtpHidden::stream_means; }
  [[nodiscard]] uint64_t scratch_bytes() const override { return memory_->size_bytes(); }

  /// Tokens that can be drafted at once: a block, as far as they fit a pass of few rows with the token before them.
  [[nodiscard]] static uint32_t most_drafts(const DsparkConfig& config) {
    return std::min(config.block, kMaxRecordedRows - 1);
  }
  /// Whether a pass through these layers leaves all that the stages read.
  [[nodiscard]] static bool can_read(const DsparkConfig& config, std::span<const LayerId> pass) {
    return std::ranges::all_of(config.layers,
                               [&](LayerId layer) { return std::ranges::find(pass, layer) != pass.end(); });
  }
  /// Bytes without layers and state.
  [[nodiscard]] static Result<uint64_t> own_bytes(const LoadContext& context, const ModelConfig& config);

 private:
  friend class DraftModule;
  DsparkModule(const LoadContext& context, const Model& model)
      : DraftModule(context, model), at_(lay_out(model.config())) {}
  struct Own {
    Linear main;               // main_proj [hidden, layers * hidden]
    kernels::Slice main_norm;  // [hidden]
    kernels::Slice norm;       // [hidden]
    MixWeights end_mix;
    Linear markov;      // markov_w2 [vocab, rank]
    Linear confidence;  // confidence_head.proj [1, hidden + rank]
  };
  [[nodiscard]] static Result<WeightGroup> find_own(const LoadContext& context, const ModelConfig& config, Own& own);
  [[nodiscard]] static Result<Embedding> find_markov_rows(const LoadContext& context, const ModelConfig& config);
  Result<void> load_all(const LoadContext& context, const std::stop_token& stop) override;

  /// Places in memory_.
  struct Places {
    ScratchPlan plan;
    uint64_t main = 0;        // [wave, hidden]: main_x; in a draft, the block's mixtures
    uint64_t normalised = 0;  // [block, hidden]
    uint64_t joined = 0;      // [1, hidden + rank]: a row's mixture and the Markov head's row
    uint64_t bias = 0;        // [1, vocab]
    uint64_t confidence = 0;  // [1, 1]
  };
  [[nodiscard]] static Places lay_out(const ModelConfig& config);
  [[nodiscard]] kernels::Rows rows_at(uint64_t place, uint32_t rows, uint32_t cols) const;
  [[nodiscard]] Model::FurtherLayers stages(MtpState& state, bool is_block) const;
  /// Runs the stages over a block of `rows` tokens that begins with `last`: its mixtures [rows, hidden].
  Result<kernels::Rows> run_block(const Request& request, uint32_t rows) const;
  /// The estimated chance that draft `row` is accepted if all before it are; rows_at(joined) has its input.
  [[nodiscard]] double chance() const;

  Places at_;
  std::unique_ptr<kernels::Buffer> own_memory_;  // own_ lies in it
  Own own_;
  std::optional<Embedding> markov_rows_;  // markov_w1 [vocab, rank]
  std::unique_ptr<kernels::Buffer> memory_;
};

}  // namespace dspack::runtime
