// Published forms of weights that are refused by name, with what is missing: by config.json, and by tensors if it does
// not name them. Threads: thread-safe (pure functions). Errors: unsupported, with the reason.
#pragma once

#include <string_view>

#include "format/checkpoint.h"

namespace dspack::format {

/// Why a published "quant_method" cannot be run, and the remedy; empty: it is none of these.
[[nodiscard]] std::string_view refusal_of(std::string_view method);

/// Refuses a tensor that only such a form has.
[[nodiscard]] Result<void> refuse_form(const Checkpoint& checkpoint, const TensorEntry& tensor);

}  // namespace dspack::format
