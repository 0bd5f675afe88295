// The plan of both memories if a GPU computes: the contents of its memory, and of this process's.
// Threads: a pure function on plain values. Errors: budget, with the number that would do and the remedy.
#pragma once

#include <optional>
#include <span>

#include "runtime/budget/memory_plan.h"

namespace dspack::runtime {

/// The user's settings for a GPU's experts.
struct GpuExperts {
  std::optional<Amount> vram;  // kept by each GPU; unset: all if they fit, else as many as fit
  bool as_they_come = false;   // do not read all of them before the first token, even if they fit
};

/// For a model that a GPU computes: its memory holds all of it, or all but experts that do not fit, some of which are
/// held by `further` GPUs. If the first has room for all, the others stay unused. Errors: also a GPU without room for
/// the rest of the model; a further one without room for its share of a wave.
[[nodiscard]] Result<MemoryPlan> make_gpu_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits,
                                                      const VramLimits& vram, const GpuExperts& experts = {},
                                                      std::span<const VramLimits> further = {});

}  // namespace dspack::runtime
