// A memory plan for machines.
// Threads: pure functions. Errors: none.
#pragma once

#include "format/json.h"
#include "runtime/budget/memory_plan.h"

namespace dspack::runtime {

/// Bytes of every part, slots, streamed layers and the length of a chunk. "limit": null where there is none. "vram":
/// only where a GPU holds the model.
[[nodiscard]] format::Json to_json(const MemoryPlan& plan);

}  // namespace dspack::runtime
