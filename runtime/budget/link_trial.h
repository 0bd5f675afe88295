// Measures how fast experts are copied from host memory to a device's: a few are copied as in a run, on a separate
// queue, from pinned memory. They hold zeros; no weights are read.
// Threads: single-thread. Lifetime: borrows its arguments for the call. Errors: not_found (no expert); those of finding
// weights; budget (no memory for two experts in either place); cancelled.
#pragma once

#include "runtime/experts/expert_layout.h"

namespace dspack::runtime {

/// An expert that represents all experts of a model in a trial.
struct TrialExpert {
  ExpertKey key;
  SlotPlan slot;        // in host memory
  ExpertLayout layout;  // in device memory
};

/// The first expert of the first of these layers that has one. A pure function. Errors: not_found (the checkpoint holds
/// none of these layers); those of finding weights.
[[nodiscard]] Result<TrialExpert> find_trial_expert(const format::Checkpoint& checkpoint, const DeviceExperts& experts);

struct LinkTimes {
  double one = 0;      // seconds for one expert alone
  double several = 0;  // for `count` in a row
  uint32_t count = 1;
  uint64_t expert_bytes = 0;  // copied for one expert

  /// Seconds for `experts` experts in a row.
  [[nodiscard]] double seconds(double experts) const;
  /// Bytes per second for many experts.
  [[nodiscard]] double rate() const;
};

/// Copies experts like those of `experts`, `count` at a time, for about `seconds`, at least three times.
[[nodiscard]] Result<LinkTimes> time_link(kernels::Device& device, const format::Checkpoint& checkpoint,
                                          const DeviceExperts& experts, uint32_t count, double seconds,
                                          const std::stop_token& stop);

}  // namespace dspack::runtime
