// Forms of weights that people publish and that cannot be run, known by their tensors' names: config.json may have lost
// its quantization_config. Those that it names are refused in config/quantization_config.h.
// Threads: thread-safe (pure functions). Errors: unsupported, with file, tensor and reason.
#pragma once

#include "runtime/weights/linear.h"

namespace dspack::runtime {

/// Refuses a tensor that only such a form has.
[[nodiscard]] Result<void> refuse_form(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor);

}  // namespace dspack::runtime
