// Perplexity of a text: how well the model predicts each of its tokens, in windows of the context's length.
// Threads: single-thread. Lifetime: borrows the session. Errors: invalid (nothing to score), those of the forward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/generate/session.h"

namespace dspack::runtime {

/// Tokens [begin, end) of a text, which go through the model at once. Those from `scored_from` on are scored; the
/// earlier ones are context.
struct TextWindow {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t scored_from = 0;
};

/// Windows of up to `length` tokens, each `stride` after the previous one (1 <= stride <= length). Together they score
/// every token once, except, without a prefix, a window's first token that no earlier window scored.
[[nodiscard]] std::vector<TextWindow> text_windows(uint64_t tokens, uint64_t length, uint64_t stride, bool has_prefix);

/// Sums of -log p(token | the tokens before it in its window), in nats.
struct Surprise {
  uint64_t tokens = 0;
  double sum = 0;
  double squares = 0;

  void add(double nats);
  [[nodiscard]] double mean() const;
  /// Standard error of the mean, as if the tokens were independent: sample deviation / sqrt(tokens).
  [[nodiscard]] double mean_error() const;
  [[nodiscard]] double perplexity() const;        // exp(mean)
  [[nodiscard]] double perplexity_error() const;  // perplexity * mean_error
};

/// -log softmax(logits)[token], in double precision.
[[nodiscard]] double surprise_of(std::span<const float> logits, uint32_t token);

struct PerplexityPlan {
  std::span<const uint32_t> tokens;  // the text, without the prefix
  std::span<const uint32_t> prefix;  // precedes every window: the BOS token, or empty
  std::vector<TextWindow> windows;
};
/// Called after some tokens were scored, with the sums so far.
using SurpriseCallback = std::function<void(const Surprise& so_far)>;

[[nodiscard]] Result<Surprise> measure_surprise(Session& session, const PerplexityPlan& plan,
                                                const SurpriseCallback& on_progress, const std::stop_token& stop);

}  // namespace dspack::runtime
