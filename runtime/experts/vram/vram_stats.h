// What the tier of experts in device memory has done, in numbers.
// Threads: plain values. Errors: none.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "runtime/experts/eviction_policy.h"

namespace dspack::runtime {

/// Of one phase.
struct VramPhaseStats {
  uint64_t hits = 0;   // demands of experts that were in device memory
  uint64_t late = 0;   // of experts that were being copied there
  uint64_t moved = 0;  // misses that were copied there
  uint64_t moved_bytes = 0;
  uint64_t computed = 0;        // misses that the CPU computed where they lay
  uint64_t computed_bytes = 0;  // of their weights
  uint64_t promoted = 0;        // of these: copied afterwards, while the link was idle
  uint64_t promoted_bytes = 0;
  uint64_t evictions = 0;
  double waiting_seconds = 0;  // the device stood still for experts: they were copied, read or computed elsewhere
  // Copies on the chance; counted with the decode passes, which cause them.
  uint64_t prefetches = 0;
  uint64_t prefetched_bytes = 0;
  uint64_t useful_prefetches = 0;  // wanted later, while still there
  uint64_t wasted_bytes = 0;       // of experts that left without having been wanted

  [[nodiscard]] uint64_t misses() const { return moved + computed; }
};

struct VramStats {
  std::array<VramPhaseStats, kPhases> phases{};  // by Phase
  uint64_t draft_misses = 0;                     // only drafted tokens wanted the expert
  std::string miss;                              // auto, move or compute
  bool is_deterministic = false;
  uint64_t slots = 0;                // of the cache
  uint64_t used = 0;                 // of these, now
  uint64_t bytes = 0;                // of all slots, those of the window included
  double link_bytes_per_second = 0;  // at which experts were copied lately; 0: none was
  double cpu_bytes_per_second = 0;   // at which the CPU went through weights of one row lately; 0: it did not
};

}  // namespace dspack::runtime
