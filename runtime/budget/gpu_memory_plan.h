// The plan of both memories if a GPU computes: what lies in its memory, and what this process holds.
// Threads: a pure function on plain values. Errors: budget, with the number that would do and the remedy.
#pragma once

#include <optional>

#include "runtime/budget/memory_plan.h"

namespace dspack::runtime {

/// What a user says of a GPU's experts.
struct GpuExperts {
  std::optional<Amount> vram;  // in its memory; unset: all if they fit, else as many as do
  bool as_they_come = false;   // not all are to be read before the first token, though they may fit
};

/// For a model that a GPU computes: all of it lies there, or all but experts that its memory does not hold. Errors:
/// also a GPU without room for the rest of the model.
[[nodiscard]] Result<MemoryPlan> make_gpu_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits,
                                                      const VramLimits& vram, const GpuExperts& experts = {});

}  // namespace dspack::runtime
