// Rotary position embedding: frequencies (plain or YaRN), tables by position, and the attention scale.
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

/// FP32 [count, 2]: the factor of queries at each position (RopeConfig::query_beta), and 0. Rotating a pair of values
/// by these as cosine and sine multiplies the pair by the factor.
[[nodiscard]] std::vector<float> query_scale_table(const RopeConfig& rope, uint32_t first, uint32_t count);

/// A device's tables by position, in one piece of memory.
struct PositionTables {
  kernels::Slice cos_sin;        // [positions, rope_dim / 2, 2], see kernels::RopeArgs
  kernels::Slice query_scale;    // [positions, 1, 2], see query_scale_table; empty: queries are not scaled
  kernels::Slice entry_cos_sin;  // as cos_sin, for layers with compressed entries; empty: none
};
/// Size of these tables, in FP32 values.
[[nodiscard]] uint64_t position_table_values(const ModelConfig& config, uint32_t positions);
/// The tables' places in `memory`, which has position_table_values().
[[nodiscard]] PositionTables position_tables(const ModelConfig& config, kernels::Slice memory, uint32_t positions);

/// The factor of attention scores: query_dim^-1/2, times YaRN's mscale squared.
[[nodiscard]] float attention_scale(const RopeConfig& rope, uint32_t query_dim);

}  // namespace dspack::runtime
