// An answer in progress over a sequence: determines the tokens that the next pass appends (of the prompt, then the last
// token and drafts of the next ones), and the tokens that certainly follow after the pass. Its owner runs the passes,
// for this answer alone (Session) or for several (Scheduler):
//   loop: next(); a pass over these rows; passed(); if needs_choice(): choose(), deliver(), until that returns an end
//   at the end: finish()
// Threads: single-thread. Lifetime: borrows the engine's parts, sequence, speculator, sampler and end tokens. Errors:
// those of drafting, of the sampler and of the device; after one of `choose` the answer cannot continue.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/generate/speculator.h"

namespace dspack::runtime {

enum class StopReason {
  end_token,     // the model ended its answer, or its form allows no more
  stopped,       // the token callback returned false
  max_tokens,    // the requested number
  context_full,  // no position is left
  interrupted,
};

/// Errors: invalid (no token, an id outside the vocabulary, more than `positions`).
[[nodiscard]] Result<void> check_prompt(std::span<const uint32_t> prompt, const ModelConfig& config,
                                        uint32_t positions);

/// Number of tokens of the prompt that `held` begins with and that need not be computed again. The last one always is,
/// since an answer continues from its output.
[[nodiscard]] uint32_t kept_tokens(std::span<const uint32_t> held, std::span<const uint32_t> prompt);

struct AnswerLimits {
  uint32_t max_tokens = UINT32_MAX;  // at least 1
  std::span<const uint32_t> end_tokens;
};

class Continuation {
 public:
  /// `speculator`: drafts for this sequence; may be nullptr. Cuts the sequence to its common prefix with the prompt.
  /// Precondition: check_prompt.
  Continuation(const Engine& engine, Sequence& sequence, Speculator* speculator, std::vector<uint32_t> prompt,
               const AnswerLimits& limits, Sampler& sampler);

  /// The rows of the next pass, at most `most` (not 0), borrowed until the next call. `may_draft`: they may include
  /// drafts.
  [[nodiscard]] Result<std::span<const uint32_t>> next(uint32_t most, bool may_draft, const std::stop_token& stop);
  /// The end of a pass that has only these rows.
  [[nodiscard]] PassEnd* end_of_pass();
  /// The pass over these rows was completed, in `seconds`.
  void passed(double seconds);

  /// Whether the pass determines the next token: all passes but those of a prompt before its last part.
  [[nodiscard]] bool needs_choice() const { return lacking() == 0 || !is_reading_; }
  /// Number of rows at the end of the pass from whose logits tokens are chosen.
  [[nodiscard]] uint32_t scored_rows() const { return 1 + drafts_; }
  /// Chooses tokens, given the scored rows' final states, or their logits, FP32 [scored_rows, vocab].
  [[nodiscard]] Result<void> choose(const kernels::Rows& final);
  [[nodiscard]] Result<void> choose(std::span<const float> logits);
  /// Drafts among the pass's rows; after `choose`, those that were accepted.
  [[nodiscard]] uint32_t drafts() const { return drafts_; }
  [[nodiscard]] uint32_t accepted_drafts() const { return static_cast<uint32_t>(certain_.size()) - 1; }
  /// The tokens chosen last, one per row from the first scored row on; empty once all are delivered.
  [[nodiscard]] std::span<const uint32_t> chosen() const { return certain_; }
  /// Delivers the chosen tokens one by one, as if each had come alone. `row`: index of the scored row that it was
  /// chosen from. False ends the answer with this token. Nullopt: the answer continues.
  using OnToken = std::function<bool(uint32_t token, uint32_t row)>;
  [[nodiscard]] std::optional<StopReason> deliver(const OnToken& on_token, const std::stop_token& stop);
  /// The answer has ended: removes accepted drafts after its end from the sequence.
  void finish();

  /// Whether the prompt is still being read: no token of the answer was chosen yet.
  [[nodiscard]] bool is_reading() const { return is_reading_; }
  /// Tokens that the sequence does not hold yet.
  [[nodiscard]] uint32_t lacking() const { return static_cast<uint32_t>(tokens_.size()) - sequence_.length(); }
  [[nodiscard]] std::span<const uint32_t> tokens() const { return tokens_; }
  [[nodiscard]] std::span<const uint32_t> answer() const { return std::span(tokens_).subspan(prompt_); }
  [[nodiscard]] Sequence& sequence() const { return sequence_; }

 private:
  [[nodiscard]] Result<std::vector<uint32_t>> verify(const kernels::Rows& final);
  [[nodiscard]] Result<void> take(Result<std::vector<uint32_t>> certain);

  const Engine& engine_;
  Sequence& sequence_;
  Speculator* speculator_;
  AnswerLimits limits_;
  Sampler& sampler_;
  std::vector<uint32_t> tokens_;  // prompt and answer
  uint32_t prompt_;               // its length in tokens
  bool is_reading_ = true;
  bool proposed_ = false;          // the speculator was asked for drafts of the present rows
  uint32_t drafts_ = 0;            // among the present rows
  std::vector<uint32_t> rows_;     // the next pass's rows
  std::vector<uint32_t> certain_;  // chosen, not delivered yet
  std::vector<float> logits_;
  uint32_t read_ = 0;  // tokens of the prompt that were computed
  double reading_seconds_ = 0;
};

}  // namespace dspack::runtime
