#include "runtime/serve/token_likelihood.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace dspack::runtime {
namespace {

/// In descending order of logits; equal ones in order of id.
std::vector<uint32_t> highest_tokens(std::span<const float> logits, uint32_t most) {
  std::vector<uint32_t> best;
  if (most == 0) return best;
  const auto logit = [&](uint32_t token) { return logits[token]; };
  for (uint32_t token = 0; token < logits.size(); ++token) {
    if (best.size() == most) {
      if (logits[token] <= logits[best.back()]) continue;
      best.pop_back();
    }
    best.insert(std::ranges::upper_bound(best, logits[token], std::greater{}, logit), token);
  }
  return best;
}

}  // namespace

TokenLikelihood likelihood_of(const Tokenizer& tokenizer, uint32_t id, std::span<const float> logits, uint32_t most) {
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - highest);
  const double of_all = highest + std::log(sum);
  const auto logprob = [&](uint32_t token) { return static_cast<double>(logits[token]) - of_all; };
  TokenLikelihood told{.text = std::string(tokenizer.token_bytes(id)), .logprob = logprob(id)};
  for (const uint32_t token : highest_tokens(logits, most))
    told.likeliest.push_back({.text = std::string(tokenizer.token_bytes(token)), .logprob = logprob(token)});
  return told;
}

}  // namespace dspack::runtime
