// Speculative decoding with a module for drafts: it drafts tokens, and one pass of the main model over all of them
// accepts those that the model chooses itself. The result is that of the main model alone, token by token. Above
// temperature 0 the module draws with the same noise as the model (kernels/sample_noise.h), so drafts are accepted
// where the two distributions are alike.
//
// A step is propose(), a pass of the model over the last token and the drafts, then verify(). A speculator measures the
// gain of drafting for one conversation, and belongs to it.
// Threads: single-thread. Lifetime: borrows what the engine borrows. Errors: those of running the module, of the
// sampler, cancelled. After an error of `propose` nothing was drafted and the answer can continue.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/generate/draft_policy.h"
#include "runtime/generate/token_picker.h"
#include "runtime/model/draft_module.h"

namespace dspack::runtime {

struct SpeculationOptions {
  std::optional<uint32_t> drafts;        // drafts per step; absent: if it pays, one, or a block's best (DraftPolicy)
  std::optional<MtpHidden> hidden = {};  // absent: the module's usual_hidden
};

/// Sums over all answers.
struct SpeculationStats {
  uint64_t steps = 0;           // passes of the main model while decoding
  uint64_t drafting_steps = 0;  // steps that verified a draft
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  std::vector<uint64_t> tried;  // by position in the draft: all drafts before it were accepted
  std::vector<uint64_t> stood;  // and this one was, too
  uint64_t caught_up = 0;       // positions that the module read with the model's hidden states
  double module_seconds = 0;    // catching up and drafting
};

class Speculator {
 public:
  /// Precondition: the engine has a module.
  Speculator(const Engine& engine, const SpeculationOptions& options);

  /// The model read `positions` positions of a prompt in `seconds`: gives an estimate for the module, which is one
  /// layer.
  void prefilled(uint64_t positions, double seconds);

  /// Drafts up to `most` tokens that may follow `tokens`, of which the sequence holds all but the last. None if
  /// drafting does not pay. Borrowed until the next call.
  [[nodiscard]] Result<std::span<const uint32_t>> propose(Sequence& sequence, std::span<const uint32_t> tokens,
                                                          uint32_t most, const Sampler& sampler,
                                                          const std::stop_token& stop);

  /// The tokens that certainly follow `tokens`, given the model's logits [drafts + 1, vocab] after the last token and
  /// each draft: the accepted drafts, and one more token.
  [[nodiscard]] Result<std::vector<uint32_t>> verify(std::span<const uint32_t> tokens, std::span<const float> logits,
                                                     const Sampler& sampler);

  /// The same for a sampler that takes the highest logit, given each row's token with the highest logit.
  [[nodiscard]] std::vector<uint32_t> verify(std::span<const uint32_t> likeliest);

  [[nodiscard]] const DraftModule& module() const { return *engine_.mtp; }
  /// With the hidden state that is read.
  [[nodiscard]] const SpeculationOptions& options() const { return options_; }
  [[nodiscard]] const SpeculationStats& stats() const { return stats_; }

 private:
  using Clock = std::chrono::steady_clock;

  Result<kernels::Rows> catch_up(Sequence& sequence, std::span<const uint32_t> tokens, const std::stop_token& stop);
  Result<void> draft(Sequence& sequence, std::span<const uint32_t> tokens, uint32_t count, const Sampler& sampler,
                     const std::stop_token& stop);
  void count(uint32_t accepted);

  Engine engine_;
  SpeculationOptions options_;
  DraftPolicy policy_;
  SpeculationStats stats_;

  std::vector<uint32_t> drafts_;
  Clock::time_point step_start_;
  MissCounts counts_before_;     // before this step, or after its catching up
  double catch_up_seconds_ = 0;  // in this step, beyond what every step has
};

}  // namespace dspack::runtime
