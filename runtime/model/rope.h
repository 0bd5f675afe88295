// Rotary position embedding: frequencies (plain or YaRN), the table of cosines and sines, and the attention scale that
// belongs to it.
// Threads: thread-safe (pure functions). Source: DeepSeek-V3 inference/model.py (precompute_freqs_cis) and
// transformers' _compute_yarn_parameters; frequencies and angles are rounded to FP32 where the latter rounds them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/config/config.h"

namespace dspack::runtime {

/// FP32 [rope_dim / 2].
[[nodiscard]] std::vector<float> rope_frequencies(const RopeConfig& rope, uint32_t rope_dim);

/// FP32 [count, rope_dim / 2, 2]: cosine and sine of position * frequency for `count` positions from `first` on, times
/// YaRN's factor (1 in every released model).
[[nodiscard]] std::vector<float> rope_table(const RopeConfig& rope, uint32_t rope_dim, uint32_t first, uint32_t count);

/// What attention scores are multiplied with: query_dim^-1/2, times YaRN's mscale squared.
[[nodiscard]] float attention_scale(const RopeConfig& rope, uint32_t query_dim);

}  // namespace dspack::runtime
