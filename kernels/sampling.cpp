#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/sample_weights.h"

namespace dspack::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The k-th highest logit.
double kth_highest(std::span<const double> logits, size_t k) {
  std::vector<double> sorted(logits.begin(), logits.end());
  const auto kth = sorted.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  return *kth;
}

uint64_t sum_of(std::span<const LikelyToken> tokens) {
  uint64_t sum = 0;
  for (const LikelyToken& token : tokens)
    sum += token.weight;
  return sum;
}

/// Index of the first token whose cumulative weight exceeds `place`. Precondition: `place` is below the sum.
size_t index_at(std::span<const LikelyToken> tokens, uint64_t place) {
  uint64_t sum = 0;
  size_t index = 0;
  while (sum + tokens[index].weight <= place)
    sum += tokens[index++].weight;
  return index;
}

void keep_nucleus(std::vector<LikelyToken>& tokens, double top_p) {
  const uint64_t sum = sum_of(tokens);
  const uint64_t last = last_place_of(top_p, sum);
  // Drops tokens that cannot be in the nucleus, so that the tail need not be sorted.
  const uint64_t least = least_in_set(last, sum, static_cast<uint32_t>(tokens.size()));
  std::erase_if(tokens, [least](const LikelyToken& token) { return token.weight < least; });
  std::ranges::sort(tokens, [](const LikelyToken& a, const LikelyToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  tokens.resize(index_at(tokens, last) + 1);
}

}  // namespace

std::vector<LikelyToken> likely_tokens(std::span<const double> logits, double highest, const SampleSettings& settings) {
  const bool is_cut = settings.top_k > 0 && settings.top_k < logits.size();
  const double lowest = is_cut ? kth_highest(logits, settings.top_k) : -kInfinity;
  std::vector<LikelyToken> tokens;
  tokens.reserve(logits.size());
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < lowest || logits[i] == -kInfinity) continue;
    tokens.push_back({i, weight_of((logits[i] - highest) / settings.temperature), logits[i]});
  }
  if (settings.top_p < 1) keep_nucleus(tokens, settings.top_p);
  if (settings.min_p > 0)
    std::erase_if(tokens, [&](const LikelyToken& token) { return is_unlikely(token.weight, settings.min_p); });
  return tokens;
}

uint32_t draw_token(std::span<const LikelyToken> tokens, const NoiseKey& key) {
  Arrival first;
  for (const LikelyToken& token : tokens)
    first = first_with(first, key, token.token, token.weight);
  return first.token;
}

uint32_t sample_row(std::span<const float> logits, const SampleSettings& settings, const NoiseKey& key) {
  double highest = -kInfinity;
  for (const float logit : logits) {
    if (std::isnan(logit)) return kNoToken;
    highest = std::max(highest, static_cast<double>(logit));
  }
  if (std::isinf(highest)) return kNoToken;
  const std::vector<double> exact(logits.begin(), logits.end());
  return draw_token(likely_tokens(exact, highest, settings), key);
}

}  // namespace dspack::kernels
