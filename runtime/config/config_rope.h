// The rotary embedding's part of config.json.
// Threads: thread-safe (pure functions). Errors: see config.h.
#pragma once

#include "format/config_fields.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Reads rope_theta and rope_scaling {type} of released files, or rope_parameters {rope_type, rope_theta} as
/// transformers 5 writes them. `max_positions` (max_position_embeddings) gives the factor where it is left out.
/// `rotated_share`: what partial_rotary_factor must be, 1, or of Mistral-Small-4 the rotated part of a query's head.
[[nodiscard]] Result<RopeConfig> read_rope(format::ConfigFields& fields, uint32_t max_positions, double rotated_share);

}  // namespace dspack::runtime
