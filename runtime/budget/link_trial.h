// Measures how fast experts are copied from the host's memory into a device's: a few are copied as in a run, on a queue
// of their own, from pinned memory. They hold zeros; no weights are read.
// Threads: single-thread. Lifetime: borrows its arguments for the call. Errors: not_found (no expert); those of finding
// weights; budget (no memory for two experts in either place); cancelled.
#pragma once

#include "runtime/experts/expert_layout.h"

namespace dspack::runtime {

/// An expert that stands for the others of a model where something is timed.
struct TrialExpert {
  ExpertKey key;
  SlotPlan slot;        // in the host's memory
  ExpertLayout layout;  // in a device's
};

/// The first of the first layer that has one. A pure function. Errors: not_found (the checkpoint holds none of these
/// layers); those of finding weights.
[[nodiscard]] Result<TrialExpert> find_trial_expert(const format::Checkpoint& checkpoint, const DeviceExperts& experts);

struct LinkTimes {
  double one = 0;      // seconds for one expert alone
  double several = 0;  // for `count`, one behind the other
  uint32_t count = 1;
  uint64_t expert_bytes = 0;  // that cross the link for one

  /// Seconds for so many, one behind the other.
  [[nodiscard]] double seconds(double experts) const;
  /// Bytes a second of many.
  [[nodiscard]] double rate() const;
};

/// Copies experts like those of `experts`, `count` at a time, for about `seconds`, at least three times.
[[nodiscard]] Result<LinkTimes> time_link(kernels::Device& device, const format::Checkpoint& checkpoint,
                                          const DeviceExperts& experts, uint32_t count, double seconds,
                                          const std::stop_token& stop);

}  // namespace dspack::runtime
