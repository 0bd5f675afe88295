// Measures how fast experts are read from where they are stored: a few are read the way that a run reads them, several
// at a time.
// Threads: uses its own, which have ended when it returns. Lifetime: borrows the tier for the call. Errors: those of
// reading; budget (no memory for the trial); cancelled.
#pragma once

#include "kernels/ops.h"
#include "runtime/access/tier.h"
#include "runtime/experts/slot_plan.h"

namespace dspack::runtime {

struct ReadTimes {
  double one = 0;      // seconds for one expert alone
  double several = 0;  // for `count` at once
  uint32_t count = 1;
  uint64_t expert_bytes = 0;  // stored bytes per expert
  Medium medium = Medium::disk;

  /// Seconds for `experts` experts at once.
  [[nodiscard]] double seconds(double experts) const;
  /// Bytes per second for many experts.
  [[nodiscard]] double rate() const;
};

/// Reads experts of `layers`, `count` at a time, for about `seconds`; at least one, and each at most once.
[[nodiscard]] Result<ReadTimes> time_reads(kernels::Device& device, Tier& tier, const ExpertShape& shape,
                                           std::span<const LayerId> layers, uint32_t count, double seconds,
                                           const std::stop_token& stop);

}  // namespace dspack::runtime
