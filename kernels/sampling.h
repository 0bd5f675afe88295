// Drawing a token from logits on the host: the tokens left after top-k, top-p and min-p, and the one that the noise
// selects. The steps are those of runtime/generate/sampler.h, the arithmetic that of sample_weights.h and
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
  uint64_t weight = 0;  // in units; 0: is never drawn
  double logit = 0;
};

/// By index, or with top_p < 1 by logit, the highest first, the lowest index first among equals. Minus infinity is left
/// out. Precondition: `highest` is the highest of the logits, and finite; there are at most kMostSampled.
[[nodiscard]] std::vector<LikelyToken> likely_tokens(std::span<const double> logits, double highest,
                                                     const SampleSettings& settings);

/// Precondition: one of the tokens weighs something, as one of likely_tokens always does.
[[nodiscard]] uint32_t draw_token(std::span<const LikelyToken> tokens, const NoiseKey& key);

/// The operation of ops.h for one row.
[[nodiscard]] uint32_t sample_row(std::span<const float> logits, const SampleSettings& settings, const NoiseKey& key);

}  // namespace dspack::kernels
