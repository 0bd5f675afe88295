// Speculative decoding with the MTP module: it drafts tokens, and one pass of the main model over all of them accepts
// those that the model chooses itself. The result is that of the main model alone, token by token. Above temperature 0
// the module draws with the same noise as the model (kernels/sample_noise.h), so drafts are accepted where the two
// distributions are alike.
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
#include "runtime/model/mtp.h"

namespace dspack::runtime {

struct HiddenScore {
  double log_likelihood = 0;  // mean of ln p(true token), nats
  double right = 0;           // share of tokens that the module ranked first
};

struct HiddenScores {
  HiddenScore post_norm;
  HiddenScore pre_norm;
  double standard_error = 0;  // standard error of the per-token difference of log-likelihoods
  uint32_t tokens = 0;        // scored tokens
};

/// Determines which hidden state an MTP module was trained on, from the user's own text: runs the module over it with
/// both settings, and takes the one that predicts its tokens better. If the prompt does not decide, the text after it
/// is used too. After an error of running the module it is as before.
class HiddenChoice {
 public:
  /// The setting that is better by more than three standard errors; until there is one, and if both are alike,
  /// post_norm.
  [[nodiscard]] MtpHidden chosen() const { return chosen_; }
  /// Whether the choice is final: one setting is better, or enough tokens were scored.
  [[nodiscard]] bool is_settled() const { return settled_; }
  [[nodiscard]] HiddenScores scores() const;

  /// Scores the pending positions of `sequence`, and catches the module up on them with the setting then chosen;
  /// returns the result of MtpModule::catch_up. `tokens`: all so far; the model has passed all but the last.
  /// Precondition: not settled, and positions are pending.
  [[nodiscard]] Result<kernels::Rows> catch_up(const MtpModule& module, Sequence& sequence, Scratch& scratch,
                                               std::span<const uint32_t> tokens, const std::stop_token& stop);

 private:
  void add(const std::vector<double>& post_norm, const std::vector<double>& pre_norm);

  MtpHidden chosen_ = MtpHidden::post_norm;
  bool settled_ = false;
  uint32_t tokens_ = 0;
  struct Sums {
    double likelihood = 0;
    uint32_t right = 0;
  };
  Sums post_norm_;
  Sums pre_norm_;
  double difference_ = 0;          // sum of post_norm - pre_norm per token
  double difference_squares_ = 0;  // sum of its squares
};

struct SpeculationOptions {
  std::optional<uint32_t> drafts;                          // drafts per step; absent: as many as pay (DraftPolicy)
  std::optional<MtpHidden> hidden = MtpHidden::post_norm;  // absent: chosen by the text (HiddenChoice)
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
  HiddenChoice choice;          // used if SpeculationOptions::hidden is absent
};

class Speculator {
 public:
  /// Most drafts per step if their number is chosen by measurement.
  static constexpr uint32_t kMostAutomatic = 4;

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

  [[nodiscard]] const MtpModule& module() const { return *engine_.mtp; }
  [[nodiscard]] const SpeculationOptions& options() const { return options_; }
  [[nodiscard]] const SpeculationStats& stats() const { return stats_; }
  /// The hidden state that the module reads now.
  [[nodiscard]] MtpHidden hidden() const;

 private:
  using Clock = std::chrono::steady_clock;

  Result<kernels::Rows> catch_up(Sequence& sequence, std::span<const uint32_t> tokens, const std::stop_token& stop);
  Result<void> draft(Sequence& sequence, std::span<const uint32_t> tokens, uint32_t count, const Sampler& sampler,
                     const std::stop_token& stop);
  [[nodiscard]] Result<uint32_t> proposal(const kernels::Rows& output, std::span<const uint32_t> context,
                                          const Sampler& sampler);
  void count(uint32_t accepted);

  Engine engine_;
  SpeculationOptions options_;
  DraftPolicy policy_;
  SpeculationStats stats_;

  std::vector<uint32_t> drafts_;
  std::vector<float> logits_;  // one row of the module
  Clock::time_point step_start_;
  MissCounts counts_before_;     // before this step, or after its catching up
  double catch_up_seconds_ = 0;  // in this step, beyond what every step has
};

}  // namespace dspack::runtime
