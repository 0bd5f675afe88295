// An expert that stands for the others of a model where something is timed.
// Threads: pure function. Errors: not_found (the checkpoint holds none of these layers); those of finding weights;
// unsupported (lay_out_experts).
#pragma once

#include "runtime/experts/expert_layout.h"

namespace dspack::runtime {

struct TrialExpert {
  ExpertKey key;
  SlotPlan slot;        // in the host's memory
  ExpertLayout layout;  // in a device's
};

/// The first of the first layer that has one.
[[nodiscard]] Result<TrialExpert> find_trial_expert(const format::Checkpoint& checkpoint, const DeviceExperts& experts);

}  // namespace dspack::runtime
