// The part of config.json that is DeepSeek-V4's own (deepseek_v4): attention to a window and to compressed entries,
// mixed residual streams, experts by token.
// Threads: pure functions. Errors: kept by the fields, or returned.
#pragma once

#include <string_view>

#include "format/config_fields.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

[[nodiscard]] bool is_window_type(std::string_view model_type);

/// All of such a model but its sizes, and how its weights are stored.
[[nodiscard]] Result<void> read_window_model(format::ConfigFields& fields, ModelConfig& config);

}  // namespace dspack::runtime
