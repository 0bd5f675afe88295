// One answer that is wanted: its prompt, how its tokens are chosen, when it ends, and who is told of it.
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

/// What one generation tells.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  /// It has a place, whose cache holds so many of the prompt's tokens from an earlier conversation.
  virtual void started(uint32_t kept) = 0;
  /// So many of the prompt's tokens are in the cache.
  virtual void prompt_read(uint32_t tokens) = 0;
  /// Tokens of a prompt that is scored, in order, before those of the answer. `logits`: FP32 [tokens, vocab], each row
  /// what the prompt says before that token; the first call has the prompt's first token and no logits.
  virtual void prompt_scored(std::span<const uint32_t> /*tokens*/, std::span<const float> /*logits*/) {}
  /// Whether `token` looks at logits, which take time to fetch from a device.
  [[nodiscard]] virtual bool wants_logits() const { return true; }
  /// A token of the answer; `logits` are what it was chosen from, [vocab], or empty if they are not wanted. False ends
  /// the answer with this token.
  [[nodiscard]] virtual bool token(uint32_t id, std::span<const float> logits) = 0;
  /// The end token that was chosen, which is no part of the answer; logits as above.
  virtual void end_token(uint32_t /*id*/, std::span<const float> /*logits*/) {}
  /// So many drafted tokens were verified by a pass, and so many of them chosen.
  virtual void drafted(uint32_t tokens, uint32_t accepted) = 0;
  /// Called last, and once.
  virtual void ended(const Result<StopReason>& reason) = 0;
};

struct Generation {
  std::vector<uint32_t> prompt;
  uint32_t max_tokens = UINT32_MAX;
  std::vector<uint32_t> end_tokens = {};
  Sampler sampler;
  std::shared_ptr<GenerationListener> listener;
  std::stop_token gone = {};  // nobody waits for the answer any more: it ends, and while it waits, makes room at once
  /// The listener is told what the model says of every token of the prompt, which is then computed as a whole. With
  /// max_tokens 0 nothing follows.
  bool scores_prompt = false;
  std::string client = {};  // who asks, however that is told: places go to clients in turn
  uint64_t request = 0;     // the scheduler's: the same for those submitted together
};

}  // namespace dspack::runtime
