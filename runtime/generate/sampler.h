// Chooses the next token from logits: greedily, or at random.
//
// The steps are in the order of transformers' logits processors, with which the tests compare them. Before step 1,
// tokens that a constraint excludes lose their logits (if it allows only the end, nothing else is done), and end tokens
// do while the answer is shorter than min_tokens:
//   1. logit bias: added to the logits of single tokens;
//   2. repetition penalty (Keskar et al., CTRL, 2019): for every token of the context, a logit above 0 is divided by
//      the penalty and one below is multiplied by it, once, however often the token occurs;
//   3. presence and frequency penalty (OpenAI): from the logit of a token in the answer so far, the former is
//      subtracted once, and the latter once per occurrence there;
//   4. temperature 0 ends here with the highest logit; else logits / temperature;
//   5. top-k: tokens below the k-th highest logit are left out (ties with it stay);
//   6. top-p: of the softmax over the remaining tokens, the smallest set of the likeliest whose sum is at least top_p;
//   7. min-p: tokens less likely than min_p times the likeliest are left out.
// Logits are double precision. Weights of tokens are counted in units of 2^-44 of the likeliest token's
// (kernels/sample_weights.h), so their sums are exact. A token below 2^-45 of the likeliest is never drawn.
//
// A token is a function of logits, options and context; its noise is a function of the seed and the length of the
// context (kernels/sample_noise.h). So a text depends on seed, prompt and options alone, not on earlier draws: it is
// the same with and without drafts, in one run or continued from any position, and on a GPU that has the same logits.
// Threads: belongs to one thread. Lifetime: logits and context are borrowed for the call. Errors: make: invalid
// (options); the rest: corrupt (the model's logits have NaN or +infinity, or are all -infinity), invalid (no logits, or
// more than can be drawn from; such values after bias and penalties, where -infinity means: excluded; a bias for a
// token that has no logit).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "format/base/result.h"
#include "kernels/sampling.h"
#include "runtime/generate/token_constraint.h"

namespace dspack::runtime {

struct SamplerOptions {
  double temperature = 0;                      // finite, >= 0; 0 is greedy, and ignores top_k, top_p and min_p
  uint32_t top_k = 0;                          // 0: all
  double top_p = 1;                            // > 0, <= 1; 1: all
  double min_p = 0;                            // >= 0, <= 1; 0: all
  double repetition_penalty = 1;               // finite, > 0; 1: none; above 1: repeat less
  double presence_penalty = 0;                 // finite
  double frequency_penalty = 0;                // finite
  std::map<uint32_t, double> logit_bias = {};  // by token; finite, or -infinity: never
  uint32_t min_tokens = 0;                     // a shorter answer is not ended by any of
  std::vector<uint32_t> end_tokens = {};       // these; those without a logit are ignored
  uint64_t seed = 0;
};

class Sampler {
 public:
  [[nodiscard]] static Result<Sampler> make(const SamplerOptions& options);

  /// Whether the options fit a model of `vocab` tokens. Errors: those of the first call of `sample`.
  [[nodiscard]] Result<void> check_vocab(size_t vocab) const;

  /// Whether `sample` chooses the highest unchanged logit, the lowest index among equals, for any context.
  [[nodiscard]] bool takes_highest() const { return options_.temperature == 0 && !adjusts_logits(); }

  /// The settings by which `sample` draws from unchanged logits, for any context; nullopt: it does not.
  [[nodiscard]] std::optional<kernels::SampleSettings> drawn_as_they_stand() const;
  /// The noise with which it draws the token after `tokens` tokens.
  [[nodiscard]] kernels::NoiseKey noise_after(size_t tokens) const {
    return {.seed = options_.seed, .position = tokens};
  }

  /// Sets where the answer begins in later contexts: after `prompt_tokens` tokens. Initially 0.
  void begin_answer(size_t prompt_tokens) { prompt_tokens_ = prompt_tokens; }
  /// From now on only tokens that the constraint allows are chosen. A copy of this sampler shares the constraint, so
  /// another answer needs its own.
  void constrain(std::shared_ptr<TokenConstraint> constraint) { constraint_ = std::move(constraint); }

  /// Whether the constraint allows nothing but the answer's end after these tokens (prompt and answer).
  [[nodiscard]] Result<bool> is_complete(std::span<const uint32_t> context) const;

  /// `context`: the tokens so far, prompt and answer, to which penalties apply.
  [[nodiscard]] Result<uint32_t> sample(std::span<const float> logits, std::span<const uint32_t> context) const;

  /// The tokens that `sample` draws from, with logits after the steps above. Precondition: temperature above 0.
  [[nodiscard]] Result<std::vector<kernels::LikelyToken>> candidates(std::span<const float> logits,
                                                                     std::span<const uint32_t> context) const;

 private:
  explicit Sampler(SamplerOptions options) : options_(std::move(options)) {}
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
