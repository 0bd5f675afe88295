// The tensors of a checkpoint that nobody has read: names, shapes and types as the releases of an architecture have
// them, from config.json alone. For plans; a checkpoint that is there says itself what it holds.
// Threads: a pure function. Errors: unsupported (a form of weights whose sizes config.json does not tell), invalid
// (sizes that no disk holds).
#pragma once

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// What a plain run reads, so without MTP modules: BF16, or where config.json says so FP8 in blocks, NVFP4 or packed
/// integers, but for embedding, output head, norms, routers and the modules that it names.
[[nodiscard]] Result<format::Checkpoint> expected_tensors(const ModelConfig& config);

}  // namespace dspack::runtime
