#include "runtime/generate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dspack::runtime {
namespace {

/// Index of the highest logit, the lowest among equals.
Result<uint32_t> find_best(std::span<const float> logits) {
  if (logits.empty() || logits.size() > std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorKind::invalid, fmt::format("{} logits to choose from", logits.size())};
  }
  uint32_t best = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      return Error{ErrorKind::invalid, fmt::format("logit {} is {}", i, logits[i])};
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (std::isinf(logits[best])) return Error{ErrorKind::invalid, "every logit is -infinity"};
  return best;
}

double sum_of(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates)
    sum += candidate.probability;
  return sum;
}

void scale_to_one(std::vector<Candidate>& candidates) {
  const double sum = sum_of(candidates);
  for (Candidate& candidate : candidates)
    candidate.probability /= sum;
}

/// Softmax in the order of index, without tokens that are impossible.
std::vector<Candidate> softmax(std::span<const float> logits, float highest, double temperature) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (uint32_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((double{logits[i]} - double{highest}) / temperature);
    if (weight > 0) candidates.push_back({i, weight});
  }
  scale_to_one(candidates);
  return candidates;
}

void keep_nucleus(std::vector<Candidate>& candidates, double top_p) {
  // A token of the nucleus has at least this probability, or the others could not sum to 1. Saves sorting the tail.
  const double floor = (1 - top_p) / static_cast<double>(candidates.size());
  const auto hopeless = [floor](const Candidate& candidate) { return candidate.probability < floor; };
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), hopeless), candidates.end());
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  });
  size_t count = 0;
  double sum = 0;
  while (count < candidates.size() && (count == 0 || sum < top_p))
    sum += candidates[count++].probability;
  candidates.resize(count);
  scale_to_one(candidates);
}

}  // namespace

Result<Sampler> Sampler::make(const SamplerOptions& options) {
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return Error{ErrorKind::invalid, fmt::format("temperature {} is not a finite number >= 0", options.temperature)};
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return Error{ErrorKind::invalid, fmt::format("top-p {} is not above 0 and at most 1", options.top_p)};
  }
  return Sampler(options);
}

double Sampler::next_uniform() {
  return static_cast<double>(random_() >> 11) * 0x1p-53;
}

Result<std::vector<Candidate>> Sampler::distribution(std::span<const float> logits) const {
  TRY_ASSIGN(const uint32_t best, find_best(logits));
  if (options_.temperature == 0) return std::vector<Candidate>{{best, 1.0}};
  std::vector<Candidate> candidates = softmax(logits, logits[best], options_.temperature);
  if (options_.top_p < 1) keep_nucleus(candidates, options_.top_p);
  return candidates;
}

Result<uint32_t> Sampler::sample(std::span<const float> logits) {
  if (options_.temperature == 0) return find_best(logits);
  TRY_ASSIGN(const std::vector<Candidate> candidates, distribution(logits));
  double rest = next_uniform();
  for (const Candidate& candidate : candidates) {
    rest -= candidate.probability;
    if (rest < 0) return candidate.token;
  }
  // Rounding can leave a trace of `rest`; it belongs to the last token.
  return candidates.back().token;
}

}  // namespace dspack::runtime
