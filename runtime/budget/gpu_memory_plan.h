// The plan of both memories if a GPU computes: what lies in its memory, and what this process holds.
// Threads: a pure function on plain values. Errors: budget, with the number that would do and the remedy.
#pragma once

#include <optional>
#include <span>

#include "runtime/budget/memory_plan.h"

namespace dspack::runtime {

/// What a user says of a GPU's experts.
struct GpuExperts {
  std::optional<Amount> vram;  // in the memory of each; unset: all if they fit, else as many as do
  bool as_they_come = false;   // not all are to be read before the first token, though they may fit
};

/// For a model that a GPU computes: all of it lies there, or all but experts that its memory does not hold, of which
/// `further` GPUs hold some. Where the first has room for all, the others have nothing to do. Errors: also a GPU
/// without room for the rest of the model; a further one without room for its share of a wave.
[[nodiscard]] Result<MemoryPlan> make_gpu_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits,
                                                      const VramLimits& vram, const GpuExperts& experts = {},
                                                      std::span<const VramLimits> further = {});

}  // namespace dspack::runtime
