// A requested answer: its prompt, how its tokens are chosen, when it ends, and the listener that receives it.
// Threads: plain values; a listener is called by one thread at a time. Errors: none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/generate/continuation.h"

namespace dspack::runtime {

/// Receives the progress and the tokens of one generation. Call order: started(), prompt_read() and prompt_scored() by
/// pass, then drafted() and token() by pass, end_token(), ended(). Before started() only ended() may come.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  /// The generation has a place, whose cache already holds `kept` of the prompt's tokens. Called again if more are
  /// copied from other places while the prompt is read.
  virtual void started(uint32_t kept) = 0;
  /// `tokens` of the prompt's tokens are in the cache.
  virtual void prompt_read(uint32_t tokens) = 0;
  /// Tokens of a scored prompt, in order, before those of the answer. `logits`: FP32 [tokens, vocab], each row the
  /// model's prediction of that token; the first call has the prompt's first token and no logits.
  virtual void prompt_scored(std::span<const uint32_t> /*tokens*/, std::span<const float> /*logits*/) {}
  /// Whether `token` needs logits, which take time to download from a device.
  [[nodiscard]] virtual bool wants_logits() const { return true; }
  /// A token of the answer; `logits`: those that it was chosen from, [vocab], or empty if not wanted. False ends the
  /// answer with this token.
  [[nodiscard]] virtual bool token(uint32_t id, std::span<const float> logits) = 0;
  /// The chosen end token, which is not part of the answer; logits as above.
  virtual void end_token(uint32_t /*id*/, std::span<const float> /*logits*/) {}
  /// A pass verified `tokens` drafted tokens, and accepted `accepted` of them.
  virtual void drafted(uint32_t tokens, uint32_t accepted) = 0;
  /// Called once, as the last call.
  virtual void ended(const Result<StopReason>& reason) = 0;
};

struct Generation {
  std::vector<uint32_t> prompt;
  uint32_t max_tokens = UINT32_MAX;
  std::vector<uint32_t> end_tokens = {};
  Sampler sampler;
  std::shared_ptr<GenerationListener> listener;
  std::stop_token gone = {};  // requested once the client is gone: ends the answer, or leaves the queue at once
  /// Report logits for every token of the prompt, which is then computed as a whole. With max_tokens 0 there is no
  /// answer.
  bool scores_prompt = false;
  std::string client = {};  // identifies the client; clients get places in turn
  uint64_t request = 0;     // set by the scheduler: equal for generations submitted together
};

}  // namespace dspack::runtime
