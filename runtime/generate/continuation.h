// An answer on its way over a sequence: which tokens the next pass appends (of the prompt, then the last token and
// drafts of what may follow), and which tokens follow for certain once the pass has been made. Its owner makes the
// passes, for this answer alone (Session) or for several (Scheduler):
//   next, a pass of these rows, passed; where needs_choice: choose, deliver; and again, until deliver names an end.
// Threads: single-thread. Lifetime: borrows the engine's parts, sequence, speculator, sampler and end tokens. Errors:
// those of drafting, of the sampler and of the device; the answer cannot continue after one of `choose`.
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
  end_token,     // the model ended its answer, or its form lets nothing follow
  stopped,       // the token callback wanted no more
  max_tokens,    // as many as were asked for
  context_full,  // no position is left
  interrupted,
};

/// Errors: invalid (no token, an id outside the vocabulary, more than `positions`).
[[nodiscard]] Result<void> check_prompt(std::span<const uint32_t> prompt, const ModelConfig& config,
                                        uint32_t positions);

/// Tokens of the prompt that `held` begins with and that need not be computed again. At least the last one is, or there
/// would be nothing to continue from.
[[nodiscard]] uint32_t kept_tokens(std::span<const uint32_t> held, std::span<const uint32_t> prompt);

struct AnswerLimits {
  uint32_t max_tokens = UINT32_MAX;  // at least 1
  std::span<const uint32_t> end_tokens;
};

class Continuation {
 public:
  /// `speculator`: nullptr, or drafts for this sequence. Forgets what the sequence holds beyond the prompt's beginning.
  /// Precondition: check_prompt.
  Continuation(const Engine& engine, Sequence& sequence, Speculator* speculator, std::vector<uint32_t> prompt,
               const AnswerLimits& limits, Sampler& sampler);

  /// The rows of the next pass, `most` at most (not 0), borrowed until the next call. `may_draft`: drafts may be among
  /// them.
  [[nodiscard]] Result<std::span<const uint32_t>> next(uint32_t most, bool may_draft, const std::stop_token& stop);
  /// How a pass of these rows alone ends.
  [[nodiscard]] PassEnd* end_of_pass();
  /// They went through the model, in `seconds`.
  void passed(double seconds);

  /// Whether the pass has told what follows; of the prompt only its last part does.
  [[nodiscard]] bool needs_choice() const { return lacking() == 0 || !is_reading_; }
  /// The last so many rows of the pass, whose logits are chosen from.
  [[nodiscard]] uint32_t scored_rows() const { return 1 + drafts_; }
  /// Chooses, given the final states of these rows; or their logits, FP32 [scored_rows, vocab].
  [[nodiscard]] Result<void> choose(const kernels::Rows& final);
  [[nodiscard]] Result<void> choose(std::span<const float> logits);
  /// Drafts among the pass's rows; and after `choose`, those that were chosen.
  [[nodiscard]] uint32_t drafts() const { return drafts_; }
  [[nodiscard]] uint32_t accepted_drafts() const { return static_cast<uint32_t>(certain_.size()) - 1; }
  /// What was chosen last, one for each row from the first scored one; empty once all of it has been delivered.
  [[nodiscard]] std::span<const uint32_t> chosen() const { return certain_; }
  /// Hands over one chosen token after the other, each as if it had come alone: `row` is the one of the scored rows
  /// that it was chosen from; false ends the answer with this token. Nullopt: the answer continues.
  using OnToken = std::function<bool(uint32_t token, uint32_t row)>;
  [[nodiscard]] std::optional<StopReason> deliver(const OnToken& on_token, const std::stop_token& stop);
  /// Nothing follows: drafts that were accepted, but lie after the end, leave the sequence.
  void finish();

  /// Whether no token of the answer was chosen yet.
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
  std::vector<uint32_t> tokens_;  // of prompt and answer
  uint32_t prompt_;               // tokens
  bool is_reading_ = true;
  bool proposed_ = false;          // the speculator was asked for the present rows
  uint32_t drafts_ = 0;            // among them
  std::vector<uint32_t> rows_;     // of the next pass
  std::vector<uint32_t> certain_;  // chosen, not delivered yet
  std::vector<float> logits_;
  uint32_t read_ = 0;  // of the prompt, computed
  double reading_seconds_ = 0;
};

}  // namespace dspack::runtime
