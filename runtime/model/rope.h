// Rotary position embedding: frequencies (plain or YaRN), the tables of each position, and the attention scale that
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

/// FP32 [count, 2]: what queries at each position are multiplied with (RopeConfig::query_beta), and 0: a pair of values
/// is multiplied by being turned with it as cosine and sine.
[[nodiscard]] std::vector<float> query_scale_table(const RopeConfig& rope, uint32_t first, uint32_t count);

/// What a device keeps of each position, in one piece.
struct PositionTables {
  kernels::Slice cos_sin;        // [positions, rope_dim / 2, 2], see kernels::RopeArgs
  kernels::Slice query_scale;    // [positions, 1, 2], likewise; empty: queries are not scaled
  kernels::Slice entry_cos_sin;  // as cos_sin, of layers with compressed entries; empty: there are none
};
/// FP32 values that they take.
[[nodiscard]] uint64_t position_table_values(const ModelConfig& config, uint32_t positions);
[[nodiscard]] PositionTables position_tables(const ModelConfig& config, kernels::Slice memory, uint32_t positions);

/// What attention scores are multiplied with: query_dim^-1/2, times YaRN's mscale squared.
[[nodiscard]] float attention_scale(const RopeConfig& rope, uint32_t query_dim);

}  // namespace dspack::runtime
