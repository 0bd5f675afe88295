// The part of config.json that describes sparse attention: DeepSeek-V3.2 (deepseek_v32) and GLM-5 (glm_moe_dsa).
// Threads: pure functions. Errors: kept by the fields.
#pragma once

#include <string_view>

#include "format/config_fields.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

[[nodiscard]] bool is_sparse_type(std::string_view model_type);

/// Reads `config.indexer`. Precondition: is_sparse_type, and `config` has the sizes and the latent attention.
void read_sparse_attention(format::ConfigFields& fields, ModelConfig& config);

}  // namespace dspack::runtime
