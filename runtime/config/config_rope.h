// The rotary embedding's part of config.json.
// Threads: thread-safe (pure functions). Errors: see config.h.
#pragma once

#include "format/config_fields.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Reads rope_theta and rope_scaling {type} of released files, or rope_parameters {rope_type, rope_theta} as
/// transformers 5 writes them. `max_positions` (max_position_embeddings) gives YaRN's factor if it is left out.
/// `rotated_share`: the required partial_rotary_factor: 1, or the rotated share of a query head (Mistral-Small-4;
/// DeepSeek-V4 in transformers).
[[nodiscard]] Result<RopeConfig> read_rope(format::ConfigFields& fields, uint32_t max_positions, double rotated_share);

}  // namespace dspack::runtime
