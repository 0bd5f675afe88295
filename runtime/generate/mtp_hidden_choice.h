// Determines which hidden state an MTP module was trained on, from the user's own text: runs the module over it with
// both settings, and takes the one that predicts its tokens better. If the prompt does not decide, the text after it is
// used too.
// Threads: single-thread. Errors: those of running the module; after one the module is as before.
#pragma once

#include <span>
#include <stop_token>
#include <vector>

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

}  // namespace dspack::runtime
