// The part of a checkpoint that drafts the next tokens for speculative decoding, in one of two kinds: an MTP module,
// one layer that is run again for each further draft (mtp.h), or DSpark's stages, which draft a block at once
// (dspark.h). Drafts decide how fast an answer comes, never which it is (runtime/generate/speculator.h).
//
// It reads what the main model leaves at each position, and keeps a state in each sequence (MtpState), so several
// sequences can draft with one module. Threads: one call at a time. Lifetime: borrows the model and what the
// LoadContext borrows. Errors: load: those of finding and reading weights, budget; the others: the executor's, those of
// reading embedding rows, cancelled.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/model/model.h"

namespace dspack::runtime {

/// The part of the main model's state that a module reads. An MTP module: the hidden state after or before the final
/// norm (in a chain of drafts, its own output after or before shared_head.norm), or, only DeepSeek-V4's of April, its
/// residual streams. DSpark: the means of the streams after some layers.
enum class MtpHidden { post_norm, pre_norm, streams, stream_means };

/// Drafting: catch_up() over the pending positions, then draft(), then Sequence::truncate() drops what drafts left.
class DraftModule {
 public:
  virtual ~DraftModule() = default;
  DraftModule(const DraftModule&) = delete;
  DraftModule& operator=(const DraftModule&) = delete;

  /// Whether config.json announces a module and the checkpoint holds it.
  [[nodiscard]] static bool is_present(const format::Checkpoint& checkpoint, const ModelConfig& config);
  /// The model must have been made with ModelOptions::drafts_in_blocks if the module is DSpark.
  [[nodiscard]] static Result<std::unique_ptr<DraftModule>> load(const LoadContext& context, const Model& model,
                                                                 const std::stop_token& stop);
  /// Bytes of a module with this context, including its state of each of `sequences`; reads nothing. Errors: those of
  /// finding weights; budget.
  [[nodiscard]] static Result<uint64_t> bytes_for(const LoadContext& context, const ModelConfig& config,
                                                  uint32_t positions, const AttentionOptions& attention,
                                                  uint32_t sequences);

  /// Reads all pending positions of a sequence; next[i] is the token after pending position i. Returns what draft()
  /// begins with, valid until the next pass in `scratch`. After an error the sequence is as before, or with fewer
  /// positions pending. Preconditions: at least one position is pending; `hidden` is one that this module can read.
  [[nodiscard]] virtual Result<kernels::Rows> catch_up(Sequence& sequence, Scratch& scratch,
                                                       std::span<const uint32_t> next, MtpHidden hidden,
                                                       const std::stop_token& stop) const = 0;

  /// Chooses a token from its logits [1, vocab], which are in the model's score_rows.
  using Choose = std::function<Result<uint32_t>(const kernels::Rows& scores)>;
  struct Request {
    Sequence& sequence;
    Scratch& scratch;
    kernels::Rows begin;  // returned by catch_up
    uint32_t last = 0;    // the token after the sequence's
    uint32_t count = 0;   // drafts wanted, at least one
    MtpHidden hidden = MtpHidden::post_norm;
    /// Leaves out the second draft and later ones whose chance of being accepted, with all before, is less by the
    /// module's own estimate. Only DSpark estimates.
    double least_chance = 0;
    const Choose& choose;
    const std::stop_token& stop;
  };
  /// Tokens that may follow `last`: count, or fewer where the module drafts no more, or the cache has no room.
  /// Precondition: nothing is pending.
  [[nodiscard]] virtual Result<std::vector<uint32_t>> draft(const Request& request) const = 0;

  /// Drafts that cost hardly more than one: 1, or a block of tokens.
  [[nodiscard]] virtual uint32_t drafts_at_once() const { return 1; }
  /// The hidden state that it reads unless another one is asked for.
  [[nodiscard]] virtual MtpHidden usual_hidden() const = 0;
  [[nodiscard]] virtual bool shares_head() const { return true; }
  [[nodiscard]] virtual bool shares_embedding() const { return true; }
  [[nodiscard]] virtual uint64_t scratch_bytes() const = 0;

  [[nodiscard]] std::vector<LayerId> layers() const { return model_.config().draft_layers(); }
  [[nodiscard]] uint64_t weight_bytes() const { return weight_bytes_; }
  /// Work of a pass of the module, without routed experts but with the head that it uses.
  [[nodiscard]] WeightWork work() const { return work_; }
  /// Bytes that loading has read, a comparison of head tensors included.
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_; }

 protected:
  DraftModule(const LoadContext& context, const Model& model) : queue_(context.queue), model_(model) {}
  /// Loads everything.
  virtual Result<void> load_all(const LoadContext& context, const std::stop_token& stop) = 0;
  /// Loads the layers.
  Result<void> load_layers(const LoadContext& context, const std::stop_token& stop);
  /// The name of a tensor of the layer that is `place` after the module's first: "layers.44.main_norm.weight".
  [[nodiscard]] static std::string name_of(const ModelConfig& config, std::string_view part, uint32_t place = 0);

  kernels::Queue& queue_;
  const Model& model_;
  std::vector<std::unique_ptr<LayerWeights>> layers_;
  WeightWork work_;
  uint64_t weight_bytes_ = 0;

 private:
  uint64_t bytes_read_ = 0;
};

}  // namespace dspack::runtime
