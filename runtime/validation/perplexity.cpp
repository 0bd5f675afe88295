#include "runtime/validation/perplexity.h"

#include <algorithm>
#include <cmath>

namespace dspack::runtime {

namespace {

// The prefix and the window's tokens. The last one is only predicted, never an input.
std::vector<uint32_t> sequence_of(const PerplexityPlan& plan, const TextWindow& window) {
  std::vector<uint32_t> sequence(plan.prefix.begin(), plan.prefix.end());
  const auto part = plan.tokens.subspan(window.begin, window.end - window.begin);
  sequence.insert(sequence.end(), part.begin(), part.end());
  return sequence;
}

}  // namespace

std::vector<TextWindow> text_windows(uint64_t tokens, uint64_t length, uint64_t stride, bool has_prefix) {
  DSPACK_CHECK(stride >= 1 && stride <= length, "windows that leave tokens out");
  std::vector<TextWindow> windows;
  for (uint64_t begin = 0, scored = 0; scored < tokens; begin += stride) {
    TextWindow window{.begin = begin, .end = std::min(begin + length, tokens), .scored_from = scored};
    scored = window.end;
    if (!has_prefix) window.scored_from = std::max(window.scored_from, begin + 1);
    if (window.scored_from < window.end) windows.push_back(window);
  }
  return windows;
}

void Surprise::add(double nats) {
  ++tokens;
  sum += nats;
  squares += nats * nats;
}

double Surprise::mean() const {
  return tokens == 0 ? 0 : sum / static_cast<double>(tokens);
}

double Surprise::mean_error() const {
  if (tokens < 2) return 0;
  const auto count = static_cast<double>(tokens);
  const double variance = std::max(0.0, (squares - sum * sum / count) / (count - 1));
  return std::sqrt(variance / count);
}

double Surprise::perplexity() const {
  return std::exp(mean());
}

double Surprise::perplexity_error() const {
  return perplexity() * mean_error();
}

double surprise_of(std::span<const float> logits, uint32_t token) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - highest);
  return highest + std::log(sum) - static_cast<double>(logits[token]);
}

Result<Surprise> measure_surprise(Session& session, const PerplexityPlan& plan, const SurpriseCallback& on_progress,
                                  const std::stop_token& stop) {
  if (plan.windows.empty()) {
    return Error{ErrorKind::invalid, "the text has no token that could be predicted; give a longer one"};
  }
  Surprise surprise;
  for (const TextWindow& window : plan.windows) {
    const std::vector<uint32_t> sequence = sequence_of(plan, window);
    const size_t first_scored = plan.prefix.size() + (window.scored_from - window.begin);
    size_t foretold = 1;  // index in the sequence of the token that the next row of logits predicts
    const auto score = [&](std::span<const float> rows) {
      const size_t vocab = session.vocab();
      for (size_t at = 0; at < rows.size(); at += vocab, ++foretold) {
        if (foretold >= first_scored) surprise.add(surprise_of(rows.subspan(at, vocab), sequence[foretold]));
      }
      on_progress(surprise);
    };
    TRY(session.logits(std::span(sequence).first(sequence.size() - 1), 0, score, stop));
  }
  return surprise;
}

}  // namespace dspack::runtime
