// Plan of the memory use, made from options and catalogue before anything is loaded: for loading and for `dsrun plan`.
// Threads: single-thread. Lifetime: borrows its arguments for the call. Errors: invalid and unsupported (a context or
// layers that the model lacks), those of finding weights, budget (with the number that would do).
#pragma once

#include "runtime/budget/model_needs.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

struct LoadPlan {
  ModelOptions model;
  bool with_mtp = false;
  std::set<LayerId> expert_layers;  // layers whose experts a run may need; may be empty
  MemoryNeeds needs;
  MemoryPlan memory;
};

/// Without --ram the limit is the memory that is available now. If an automatically chosen GPU cannot hold the model,
/// `chosen` becomes the CPU.
[[nodiscard]] Result<LoadPlan> plan_load(ChosenDevice& chosen, CheckpointAccess& access, const ModelConfig& config,
                                         const LoadOptions& options, const std::stop_token& stop);

}  // namespace dspack::runtime
