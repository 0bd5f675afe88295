// The part of config.json that only DeepSeek-V4 has (deepseek_v4): attention to a window and to compressed entries,
// mixed residual streams, experts by token.
// Threads: pure functions. Errors: kept by the fields, or returned.
#pragma once

#include <string_view>

#include "format/config_fields.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

[[nodiscard]] bool is_window_type(std::string_view model_type);

/// Reads everything of such a model except its sizes and the stored form of its weights.
[[nodiscard]] Result<void> read_window_model(format::ConfigFields& fields, ModelConfig& config);

}  // namespace dspack::runtime
