// A conversation with a model, over its sequence: prefill of tokens that the sequence lacks, and the decoding loop.
// Threads: single-thread. Lifetime: owns the sequence, borrows what the engine borrows. Errors: invalid (a prompt that
// is empty or too long, an id outside the vocabulary), those of the forward pass and the sampler. An interruption is
// not an error: it ends the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/generate/continuation.h"

namespace dspack::runtime {

struct GenerateOptions {
  uint32_t max_tokens = UINT32_MAX;
  std::vector<uint32_t> end_tokens;
  /// Called with the number of the prompt's tokens to compute, before the first of them; an error ends the run. May be
  /// empty.
  std::function<Result<void>(uint64_t tokens)> before_prefill = {};
};

struct Answer {
  std::vector<uint32_t> tokens;  // without the end token
  StopReason reason = StopReason::max_tokens;
};

/// Sums over the session.
struct SessionTimes {
  uint64_t prefill_tokens = 0;  // computed, without those that the sequence still held
  double prefill_seconds = 0;   // until the answer's first token was chosen
  uint64_t decode_tokens = 0;   // tokens from passes after the prompt's, the end token included
  uint64_t decode_passes = 0;   // equals decode_tokens unless drafts were accepted
  double decode_seconds = 0;
  /// The seconds by stage; zeros if the device runs operations after their calls return.
  StageSeconds prefill_stages{}, decode_stages{};
};

/// Called with each token of the answer as soon as it is certain; false ends the answer with this token.
using TokenCallback = std::function<bool(uint32_t token)>;

class Session {
 public:
  /// `speculation`: how tokens are drafted; needs the engine's module, and a sequence with MTP state. Absent: one token
  /// per pass. The answer does not depend on it (speculator.h).
  Session(const Engine& engine, Sequence sequence, const std::optional<SpeculationOptions>& speculation = std::nullopt);

  /// Continues `prompt` (the whole conversation so far). The beginning of it that the sequence still holds is not
  /// computed again.
  [[nodiscard]] Result<Answer> generate(std::span<const uint32_t> prompt, const GenerateOptions& options,
                                        Sampler& sampler, const TokenCallback& on_token, const std::stop_token& stop);

  /// Computes the logits after every token of `prompt`, from an empty sequence; `on_rows` gets them in order, some rows
  /// at a time: FP32 [rows, vocab]. At most `chunk` tokens are in one pass (0: as many as fit). `trace` receives the
  /// modules of every pass.
  using LogitsCallback = std::function<void(std::span<const float> rows)>;
  [[nodiscard]] Result<void> logits(std::span<const uint32_t> prompt, uint32_t chunk, const LogitsCallback& on_rows,
                                    const std::stop_token& stop, Trace* trace = nullptr);

  /// Length of a row of logits.
  [[nodiscard]] uint32_t vocab() const { return engine_.model.config().vocab; }

  /// Drops the conversation.
  void clear() { sequence_.truncate(0); }

  [[nodiscard]] Sequence& sequence() { return sequence_; }
  [[nodiscard]] const Sequence& sequence() const { return sequence_; }
  /// nullptr: nothing is drafted.
  [[nodiscard]] const Speculator* speculator() const { return speculator_ ? &*speculator_ : nullptr; }
  [[nodiscard]] const SessionTimes& times() const { return times_; }

 private:
  [[nodiscard]] Result<HiddenStates> append(std::span<const uint32_t> tokens, Phase phase, const std::stop_token& stop,
                                            const PassOptions& options);
  /// Runs a pass, and chooses tokens if it determines any.
  [[nodiscard]] Result<void> advance(Continuation& answer, const std::stop_token& stop);
  [[nodiscard]] Error explained(const Error& unusable, const std::stop_token& stop);

  Engine engine_;
  Sequence sequence_;
  std::optional<Speculator> speculator_;
  SessionTimes times_;
};

}  // namespace dspack::runtime
