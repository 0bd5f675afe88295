// Chooses the next token from logits: greedily, or at random.
//
// The steps, in the order of transformers' logits processors (which the tests compare it with), after tokens that a
// constraint does not allow have lost their logits (where it allows the end alone, that is all), and end tokens as long
// as the answer is shorter than min_tokens:
//   1. logit bias: added to the logits of single tokens;
//   2. repetition penalty (Keskar et al., CTRL, 2019): for every token of the context, a logit above 0 is divided by
//      the penalty and one below is multiplied by it, once, however often the token occurs;
//   3. presence and frequency penalty (OpenAI): from the logit of a token that the answer holds so far the one is
//      subtracted, and the other as often as it occurs there;
//   4. temperature 0 ends here with the highest logit; else logits / temperature;
//   5. top-k: tokens below the k-th highest logit are left out (its equals stay);
//   6. top-p: of the softmax over what is left, the smallest set of the likeliest tokens whose sum is at least top_p;
//   7. min-p: tokens less likely than min_p times the likeliest are left out.
// Logits are double precision. What a token weighs beside others is counted in units of 2^-44 of the likeliest
// (kernels/sample_weights.h), in which sums are exact. A token below 2^-45 of the likeliest is never drawn.
//
// A token is a function of logits, options and context, its noise one of the seed and the length of the context
// (kernels/sample_noise.h). So a text depends on seed, prompt and options alone, not on who has drawn before: it is the
// same with drafts and without, in one go or continued from any of its places, and on a GPU that has the same logits.
// Threads: belongs to one thread. Lifetime: logits and context are borrowed for the call. Errors: make: invalid
// (options); the rest: corrupt (among the model's logits NaN or +infinity, or nothing but -infinity), invalid (no
// logits, or more than can be drawn from; the same after bias and penalties, where -infinity means: excluded; a bias
// for a token that has no logit).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "format/base/result.h"
#include "kernels/sampling.h"
#include "runtime/generate/token_constraint.h"

namespace dspack::runtime {

struct SamplerOptions {
  double temperature = 0;                      // finite, >= 0; 0 is greedy, whatever top_k, top_p and min_p say
  uint32_t top_k = 0;                          // 0: all
  double top_p = 1;                            // > 0, <= 1; 1: all
  double min_p = 0;                            // >= 0, <= 1; 0: all
  double repetition_penalty = 1;               // finite, > 0; 1: none, above: repeat less
  double presence_penalty = 0;                 // finite
  double frequency_penalty = 0;                // finite
  std::map<uint32_t, double> logit_bias = {};  // by token; finite, or -infinity: never
  uint32_t min_tokens = 0;                     // an answer with fewer is not ended by any of
  std::vector<uint32_t> end_tokens = {};       // these; one that has no logit never comes
  uint64_t seed = 0;
};

class Sampler {
 public:
  [[nodiscard]] static Result<Sampler> make(const SamplerOptions& options);

  /// Whether the options fit a model of `vocab` tokens; the same error as the first call of `sample` would give.
  [[nodiscard]] Result<void> check_vocab(size_t vocab) const;

  /// Whether `sample` chooses the highest logit as it stands, the lowest index among equals, whatever the context is.
  [[nodiscard]] bool takes_highest() const { return options_.temperature == 0 && !adjusts_logits(); }

  /// If `sample` draws from the logits as they stand, whatever the context is: how.
  [[nodiscard]] std::optional<kernels::SampleSettings> drawn_as_they_stand() const;
  /// With what noise it draws the token after so many.
  [[nodiscard]] kernels::NoiseKey noise_after(size_t tokens) const {
    return {.seed = options_.seed, .position = tokens};
  }

  /// The answer begins after so many tokens of the contexts that follow; at first after none.
  void begin_answer(size_t prompt_tokens) { prompt_tokens_ = prompt_tokens; }
  /// Only what the constraint allows is chosen from now on. A copy of this sampler shares it: another answer needs one
  /// of its own.
  void constrain(std::shared_ptr<TokenConstraint> constraint) { constraint_ = std::move(constraint); }

  /// Whether the constraint lets nothing follow these tokens, prompt and answer, but the answer's end.
  [[nodiscard]] Result<bool> is_complete(std::span<const uint32_t> context) const;

  /// `context`: the tokens so far, prompt and answer, which the penalties concern.
  [[nodiscard]] Result<uint32_t> sample(std::span<const float> logits, std::span<const uint32_t> context) const;

  /// What `sample` draws from at a temperature above 0, with logits as the steps before have left them.
  [[nodiscard]] Result<std::vector<kernels::LikelyToken>> candidates(std::span<const float> logits,
                                                                     std::span<const uint32_t> context) const;

 private:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}
  [[nodiscard]] bool adjusts_logits() const;
  [[nodiscard]] kernels::SampleSettings settings() const;
  [[nodiscard]] Result<std::vector<double>> adjusted(std::span<const float> logits,
                                                     std::span<const uint32_t> context) const;
  struct Adjusted {
    std::vector<double> logits;
    uint32_t best = 0;
  };
  /// Errors: as `sample`.
  [[nodiscard]] Result<Adjusted> adjust(std::span<const float> logits, std::span<const uint32_t> context) const;

  SamplerOptions options_;
  size_t prompt_tokens_ = 0;
  std::shared_ptr<TokenConstraint> constraint_;  // remembers how far it has read the answer
};

}  // namespace dspack::runtime
