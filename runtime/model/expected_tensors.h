// The tensors of an unread checkpoint, from config.json alone: names, shapes and types as in the releases of an
// architecture. For plans; a checkpoint at hand is read instead.
// Threads: a pure function. Errors: unsupported (config.json does not give the sizes of this form of weights), invalid
// (sizes that no disk holds).
#pragma once

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// The tensors that a plain run reads, without MTP modules. Matrices are BF16, or FP8 in blocks, NVFP4 or packed
/// integers if config.json says so, except embedding, output head, norms, routers and the modules that it names.
[[nodiscard]] Result<format::Checkpoint> expected_tensors(const ModelConfig& config);

}  // namespace dspack::runtime
