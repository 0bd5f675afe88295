#include "runtime/generate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace dspack::runtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Index of the highest logit, the lowest among equals.
template <class T>
Result<uint32_t> find_best(std::span<const T> logits) {
  if (logits.empty() || logits.size() > std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorKind::invalid, fmt::format("{} logits to choose from", logits.size())};
  }
  uint32_t best = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<T>::infinity()) {
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

/// Excludes all logits below the k-th highest.
void keep_highest(std::span<double> logits, size_t k) {
  if (k >= logits.size()) return;
  std::vector<double> sorted(logits.begin(), logits.end());
  const auto kth = sorted.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  for (double& logit : logits)
    if (logit < *kth) logit = -kInfinity;
}

/// Softmax in the order of index, without tokens that are impossible.
std::vector<Candidate> softmax(std::span<const double> logits, double highest, double temperature) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (uint32_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((logits[i] - highest) / temperature);
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

void drop_unlikely(std::vector<Candidate>& candidates, double min_p) {
  double highest = 0;
  for (const Candidate& candidate : candidates)
    highest = std::max(highest, candidate.probability);
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.probability < min_p * highest; });
  scale_to_one(candidates);
}

Result<void> check_bias(const std::map<uint32_t, double>& bias) {
  for (const auto& [token, value] : bias) {
    if (std::isfinite(value) || value == -kInfinity) continue;
    return Error{ErrorKind::invalid,
                 fmt::format("logit bias {} of token {} is not a finite number or -infinity", value, token)};
  }
  return {};
}

}  // namespace

Result<Sampler> Sampler::make(const SamplerOptions& options) {
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return Error{ErrorKind::invalid, fmt::format("temperature {} is not a finite number >= 0", options.temperature)};
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return Error{ErrorKind::invalid, fmt::format("top-p {} is not above 0 and at most 1", options.top_p)};
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return Error{ErrorKind::invalid, fmt::format("min-p {} is not between 0 and 1", options.min_p)};
  }
  if (!std::isfinite(options.repetition_penalty) || options.repetition_penalty <= 0) {
    return Error{ErrorKind::invalid,
                 fmt::format("repetition penalty {} is not a finite number above 0", options.repetition_penalty)};
  }
  TRY(check_bias(options.logit_bias));
  return Sampler(options);
}

Result<void> Sampler::check_vocab(size_t vocab) const {
  if (options_.logit_bias.empty() || options_.logit_bias.rbegin()->first < vocab) return {};
  return Error{ErrorKind::invalid, fmt::format("there is a logit bias for token {}, but the model has {} tokens",
                                               options_.logit_bias.rbegin()->first, vocab)};
}

double Sampler::uniform() {
  return static_cast<double>(random_() >> 11) * 0x1p-53;
}

bool Sampler::adjusts_logits() const {
  return !options_.logit_bias.empty() || options_.repetition_penalty != 1;
}

Result<std::vector<double>> Sampler::adjusted(std::span<const float> logits, std::span<const uint32_t> context) const {
  TRY(check_vocab(logits.size()));
  std::vector<double> changed(logits.begin(), logits.end());
  for (const auto& [token, bias] : options_.logit_bias)
    changed[token] += bias;
  if (options_.repetition_penalty == 1) return changed;
  std::vector<bool> done(changed.size());
  for (const uint32_t token : context) {
    if (token >= changed.size() || done[token]) continue;
    done[token] = true;
    double& logit = changed[token];
    logit = logit < 0 ? logit * options_.repetition_penalty : logit / options_.repetition_penalty;
  }
  return changed;
}

Result<std::vector<Candidate>> Sampler::distribution(std::span<const float> logits,
                                                     std::span<const uint32_t> context) const {
  TRY(find_best(logits));
  TRY_ASSIGN(std::vector<double> changed, adjusted(logits, context));
  TRY_ASSIGN(const uint32_t best, find_best(std::span<const double>(changed)));
  if (options_.temperature == 0) return std::vector<Candidate>{{best, 1.0}};
  if (options_.top_k > 0) keep_highest(changed, options_.top_k);
  std::vector<Candidate> candidates = softmax(changed, changed[best], options_.temperature);
  if (options_.top_p < 1) keep_nucleus(candidates, options_.top_p);
  if (options_.min_p > 0) drop_unlikely(candidates, options_.min_p);
  return candidates;
}

Result<uint32_t> Sampler::sample(std::span<const float> logits, std::span<const uint32_t> context) {
  if (takes_highest()) return find_best(logits);
  TRY_ASSIGN(const std::vector<Candidate> candidates, distribution(logits, context));
  if (options_.temperature == 0) return candidates.front().token;
  double rest = uniform();
  for (const Candidate& candidate : candidates) {
    rest -= candidate.probability;
    if (rest < 0) return candidate.token;
  }
  // Rounding can leave a trace of `rest`; it belongs to the last token.
  return candidates.back().token;
}

}  // namespace dspack::runtime
