#include "runtime/generate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "format/base/check.h"
#include "kernels/sample_weights.h"

namespace dspack::runtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Index of the highest logit, the lowest among equals. NaN or infinity is corrupt in the model's logits, and invalid
/// after bias and penalties, which a client may choose.
template <class T>
Result<uint32_t> find_best(std::span<const T> logits) {
  constexpr ErrorKind kBad = std::is_same_v<T, float> ? ErrorKind::corrupt : ErrorKind::invalid;
  if (logits.empty() || logits.size() > std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorKind::invalid, fmt::format("{} logits to choose from", logits.size())};
  }
  uint32_t best = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<T>::infinity()) {
      return Error{kBad, fmt::format("logit {} is {}", i, logits[i])};
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (std::isinf(logits[best])) return Error{kBad, "every logit is -infinity"};
  return best;
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
  for (const double penalty : {options.presence_penalty, options.frequency_penalty}) {
    if (std::isfinite(penalty)) continue;
    return Error{ErrorKind::invalid, fmt::format("penalty {} is not a finite number", penalty)};
  }
  TRY(check_bias(options.logit_bias));
  return Sampler(options);
}

Result<void> Sampler::check_vocab(size_t vocab) const {
  if (options_.logit_bias.empty() || options_.logit_bias.rbegin()->first < vocab) return {};
  return Error{ErrorKind::invalid, fmt::format("there is a logit bias for token {}, but the model has {} tokens",
                                               options_.logit_bias.rbegin()->first, vocab)};
}

kernels::SampleSettings Sampler::settings() const {
  return {
      .temperature = options_.temperature, .top_p = options_.top_p, .min_p = options_.min_p, .top_k = options_.top_k};
}

std::optional<kernels::SampleSettings> Sampler::drawn_as_they_stand() const {
  if (options_.temperature == 0 || adjusts_logits()) return std::nullopt;
  return settings();
}

bool Sampler::adjusts_logits() const {
  return constraint_ || (options_.min_tokens > 0 && !options_.end_tokens.empty()) || !options_.logit_bias.empty() ||
         options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0;
}

Result<bool> Sampler::is_complete(std::span<const uint32_t> context) const {
  if (!constraint_) return false;
  return constraint_->is_complete(context.subspan(std::min(prompt_tokens_, context.size())));
}

Result<std::vector<double>> Sampler::adjusted(std::span<const float> logits, std::span<const uint32_t> context) const {
  TRY(check_vocab(logits.size()));
  std::vector<double> changed(logits.begin(), logits.end());
  if (constraint_) {
    TRY_ASSIGN(const auto allowed,
               constraint_->allowed_after(context.subspan(std::min(prompt_tokens_, context.size()))));
    for (uint32_t token = 0; token < changed.size(); ++token)
      if (!allows(allowed, token)) changed[token] = -kInfinity;
    TRY_ASSIGN(const bool must_end, is_complete(context));
    if (must_end) return changed;  // other options do not apply to the end token
  }
  if (context.size() < prompt_tokens_ + options_.min_tokens)
    for (const uint32_t token : options_.end_tokens)
      if (token < changed.size()) changed[token] = -kInfinity;
  for (const auto& [token, bias] : options_.logit_bias)
    changed[token] += bias;
  if (options_.repetition_penalty != 1) {
    std::vector<bool> done(changed.size());
    for (const uint32_t token : context) {
      if (token >= changed.size() || done[token]) continue;
      done[token] = true;
      double& logit = changed[token];
      logit = logit < 0 ? logit * options_.repetition_penalty : logit / options_.repetition_penalty;
    }
  }
  if (options_.presence_penalty == 0 && options_.frequency_penalty == 0) return changed;
  std::map<uint32_t, uint32_t> counts;
  for (const uint32_t token : context.subspan(std::min(prompt_tokens_, context.size())))
    if (token < changed.size()) ++counts[token];
  for (const auto& [token, count] : counts)
    changed[token] -= options_.presence_penalty + options_.frequency_penalty * count;
  return changed;
}

Result<Sampler::Adjusted> Sampler::adjust(std::span<const float> logits, std::span<const uint32_t> context) const {
  TRY(find_best(logits));
  TRY_ASSIGN(std::vector<double> changed, adjusted(logits, context));
  TRY_ASSIGN(const uint32_t best, find_best(std::span<const double>(changed)));
  if (options_.temperature > 0 && logits.size() > kernels::kMaxSampled) {
    return Error{ErrorKind::invalid, fmt::format("{} logits are too many to draw from", logits.size())};
  }
  return Adjusted{.logits = std::move(changed), .best = best};
}

Result<std::vector<kernels::LikelyToken>> Sampler::candidates(std::span<const float> logits,
                                                              std::span<const uint32_t> context) const {
  DSPACK_CHECK(options_.temperature > 0, "nothing is drawn");
  TRY_ASSIGN(const Adjusted changed, adjust(logits, context));
  return kernels::likely_tokens(changed.logits, changed.logits[changed.best], settings());
}

Result<uint32_t> Sampler::sample(std::span<const float> logits, std::span<const uint32_t> context) const {
  if (takes_highest()) return find_best(logits);
  if (options_.temperature == 0) {
    TRY_ASSIGN(const Adjusted changed, adjust(logits, context));
    return changed.best;
  }
  TRY_ASSIGN(const auto tokens, candidates(logits, context));
  return kernels::draw_token(tokens, noise_after(context.size()));
}

}  // namespace dspack::runtime
