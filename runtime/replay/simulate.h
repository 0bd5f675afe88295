// Drives a policy over recorded routes as the expert store would, without data, and counts the reads. A layer requests
// all of its experts at once and holds them until it is done; if there are more than slots, the work runs in waves, and
// experts of a finished wave may be evicted. A loaded expert always takes a slot (no bypass), but may be the next to be
// evicted. Prefetch is off.
// Threads: thread-safe (each call by itself). Errors: none.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/experts/eviction_policy.h"
#include "runtime/replay/workload.h"

namespace dspack::runtime {

struct ReplayCounts {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t bytes = 0;         // read for the misses
  uint64_t known_misses = 0;  // part of `misses`: in layers that select experts by token, and so read ahead
};

struct ReplayResult {
  std::array<ReplayCounts, kPhases> phases;
  [[nodiscard]] const ReplayCounts& of(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
  [[nodiscard]] uint64_t misses() const { return phases[0].misses + phases[1].misses; }
};

/// `policy` is new, made for `slots` slots. Precondition: slots >= 1.
[[nodiscard]] ReplayResult simulate(const Workload& workload, uint64_t slots, EvictionPolicy& policy);

}  // namespace dspack::runtime
