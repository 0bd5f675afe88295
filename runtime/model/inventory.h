// Checks that the model reads all of a checkpoint: a tensor of a layer that no code reads (a bias, a new norm) would be
// ignored silently, and the result could be wrong.
// Threads: thread-safe (pure functions). Errors: unsupported (names the first such tensor and its file), invalid (a
// tensor under two names), not_found (an FP8 weight without a scale).
#pragma once

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Refuses a checkpoint with a tensor that is neither read nor known to have no effect on a plain run. Known are: the
/// MTP module, rotary frequencies (they follow from config.json), scales for activations and FP8 caches, and the vision
/// parts of a model.
[[nodiscard]] Result<void> refuse_unknown_tensors(const format::Checkpoint& checkpoint, const ModelConfig& config);

/// Refuses a checkpoint that lacks the embedding, an expert, or some tensors of an MTP module that it has; else a pass
/// could fail in the middle of an answer. A packed part of a model may lack them. Errors: not_found.
[[nodiscard]] Result<void> require_whole_model(const format::Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace dspack::runtime
