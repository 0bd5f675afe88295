// Checks that the model reads all of a checkpoint: a tensor of a layer that no code reads (a bias, a new norm) would be
// ignored silently, and the result could be wrong.
// Threads: thread-safe (pure functions). Errors: unsupported (names the first such tensor and its file), invalid (one
// tensor under two names), not_found (an FP8 weight without a scale).
#pragma once

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Refuses a checkpoint with a tensor that is neither read nor known to be without effect on a plain run: the MTP
/// module, rotary frequencies (they follow from config.json), scales for activations and caches of FP8, the parts of a
/// model that see pictures.
[[nodiscard]] Result<void> refuse_unknown_tensors(const format::Checkpoint& checkpoint, const ModelConfig& config);

/// Refuses a whole checkpoint that lacks an expert of a layer that it has, or has a part of an MTP module: what the
/// router picks would be missed in the middle of an answer. A packed part of a model may lack both. Errors: not_found.
[[nodiscard]] Result<void> require_whole_model(const format::Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace dspack::runtime
