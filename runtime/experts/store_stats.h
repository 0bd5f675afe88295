// Statistics of expert caches.
// Threads: plain values. Errors: none.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "runtime/access/tier.h"
#include "runtime/experts/eviction_policy.h"

namespace dspack::runtime {

/// Counts of one cache, in host or device memory, in one phase.
struct CacheCounts {
  uint64_t hits = 0;          // demands of experts that were in the cache
  uint64_t late = 0;          // demands of experts that were being fetched
  uint64_t missed = 0;        // demands of all others
  uint64_t draft_misses = 0;  // part of `missed`: only drafted tokens wanted the expert
  uint64_t evictions = 0;
  double waiting_seconds = 0;  // time that the model waited for experts
  // Prefetching, counted with the decode passes, which cause it.
  uint64_t prefetches = 0;
  uint64_t prefetched_bytes = 0;
  uint64_t useful_prefetches = 0;  // wanted later, while still in the cache
  uint64_t useful_bytes = 0;
  uint64_t wasted_bytes = 0;  // experts evicted, or given up half read, without having been wanted
  uint64_t foreseeable = 0;   // demands of layers that had a forecast
  uint64_t foreseen = 0;      // part of `foreseeable`: the forecast named the expert
  uint64_t expected = 0;      // experts in all forecasts

  CacheCounts& operator+=(const CacheCounts& other);
};

/// Counts of host memory.
struct PhaseStats : CacheCounts {
  uint64_t passes = 0;
  std::array<uint64_t, 2> misses{};  // by Medium
  std::array<uint64_t, 2> bytes{};   // read for these misses, by Medium

  [[nodiscard]] uint64_t all_misses() const { return misses[0] + misses[1]; }
};

/// Counts of a device's memory.
struct VramPhaseStats : CacheCounts {
  uint64_t moved = 0;  // misses that were copied there
  uint64_t moved_bytes = 0;
  uint64_t computed = 0;        // misses that the CPU computed in the host's memory
  uint64_t computed_bytes = 0;  // size of these experts' weights
  uint64_t promoted = 0;        // part of `computed`: copied afterwards, while the link was idle
  uint64_t promoted_bytes = 0;
  uint64_t returned = 0;  // experts copied back to host memory
  uint64_t returned_bytes = 0;

  VramPhaseStats& operator+=(const VramPhaseStats& other);
};

struct VramStats {
  std::array<VramPhaseStats, kPhases> phases{};  // by Phase
  uint64_t draft_misses = 0;                     // sum of both phases
  std::string miss;                              // auto, move or compute
  bool is_deterministic = false;
  uint64_t slots = 0;                 // without the window's
  uint64_t used = 0;                  // slots that hold an expert now
  uint64_t bytes = 0;                 // memory of all slots, including the window's
  double link_bytes_per_second = 0;   // recent rate of copying experts; 0: none was copied
  double cpu_bytes_per_second = 0;    // recent rate at which the CPU went through weights for one row; 0: it did not
  std::vector<VramStats> cards = {};  // the stats of each GPU, if there are several; this is their sum

  /// Adds the stats of one more card.
  void add(VramStats card);
};

struct ExpertStoreStats {
  std::array<PhaseStats, kPhases> phases{};  // by Phase
  std::string policy;
  std::string prefetch;                // off, on or auto
  bool prefetch_switched_off = false;  // auto: tried, and does not pay at present
  bool in_place = false;               // experts are mapped from the page cache
  uint64_t slots = 0;
  uint64_t slot_bytes = 0;  // size of all slots, used or not
  uint64_t resident_experts = 0;
  uint64_t resident_bytes = 0;                            // size of the slots that were ever used
  uint64_t loaded_bytes = 0;                              // read before the first pass, by resident experts
  std::set<ExpertKey> read_experts;                       // each once, however often it was read
  std::map<LayerId, std::set<std::string>> opened_files;  // by layer, relative to the repository
  std::optional<VramStats> vram;                          // if a GPU holds some of the experts

  [[nodiscard]] uint64_t hits() const { return phases[0].hits + phases[0].late + phases[1].hits + phases[1].late; }
  [[nodiscard]] uint64_t misses() const { return phases[0].all_misses() + phases[1].all_misses(); }
  [[nodiscard]] uint64_t bytes_read() const {
    uint64_t sum = loaded_bytes;
    for (const PhaseStats& phase : phases)
      sum += phase.bytes[0] + phase.bytes[1] + phase.prefetched_bytes;
    return sum;
  }
};

}  // namespace dspack::runtime
