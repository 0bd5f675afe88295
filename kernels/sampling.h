// Draws a token from logits on the host: selects the tokens left after top-k, top-p and min-p, then the one that the
// noise selects. The steps are those of runtime/generate/sampler.h, the arithmetic that of sample_weights.h and
// sample_noise.h. Threads: pure functions. Lifetime: spans are borrowed for the call. Errors: none; see the
// preconditions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "kernels/sample_noise.h"

namespace dspack::kernels {

struct LikelyToken {
  uint32_t token = 0;
  uint64_t weight = 0;  // in units of sample_weights.h; 0: never drawn
  double logit = 0;
};

/// The tokens left by `settings`, in order of index, or if top_p < 1 in descending order of logit, the lowest index
/// first among equals. Leaves out logits of minus infinity. Precondition: `highest` is the highest logit and finite; at
/// most kMaxSampled logits.
[[nodiscard]] std::vector<LikelyToken> likely_tokens(std::span<const double> logits, double highest,
                                                     const SampleSettings& settings);

/// Precondition: at least one weight is above 0, as in every result of likely_tokens.
[[nodiscard]] uint32_t draw_token(std::span<const LikelyToken> tokens, const NoiseKey& key);

/// Queue::sample (ops.h) for one row.
[[nodiscard]] uint32_t sample_row(std::span<const float> logits, const SampleSettings& settings, const NoiseKey& key);

}  // namespace dspack::kernels
