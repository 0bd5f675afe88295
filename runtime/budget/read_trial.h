// How fast experts come from where they lie: a few are read the way that a run reads them, some at a time.
// Threads: uses some of its own and returns when they have ended. Lifetime: borrows the tier for the call. Errors:
// those of reading; budget (no memory for the trial); cancelled.
#pragma once

#include "kernels/ops.h"
#include "runtime/access/tier.h"
#include "runtime/experts/slot_plan.h"

namespace dspack::runtime {

struct ReadTimes {
  double one = 0;      // seconds for one expert alone
  double several = 0;  // for `count` at once
  uint32_t count = 1;
  uint64_t expert_bytes = 0;  // stored bytes of one
  Medium medium = Medium::disk;

  /// Seconds for so many at once.
  [[nodiscard]] double seconds(double experts) const;
  /// Bytes a second of many.
  [[nodiscard]] double rate() const;
};

/// Reads experts of `layers`, `count` at a time, for about `seconds`; at least one, and each at most once.
[[nodiscard]] Result<ReadTimes> time_reads(kernels::Device& device, Tier& tier, const ExpertShape& shape,
                                           std::span<const LayerId> layers, uint32_t count, double seconds,
                                           const std::stop_token& stop);

}  // namespace dspack::runtime
