// What an expert store has done, in numbers.
// Threads: plain values. Errors: none.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "format/base/ids.h"
#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/vram/vram_stats.h"
#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

/// Of one phase.
struct PhaseStats {
  uint64_t passes = 0;
  uint64_t hits = 0;                 // demands of experts that were in memory
  uint64_t late = 0;                 // of experts that were on their way
  std::array<uint64_t, 2> misses{};  // by StorageTier
  std::array<uint64_t, 2> bytes{};   // read for them
  uint64_t draft_misses = 0;         // of the misses: only drafted tokens wanted the expert
  uint64_t evictions = 0;
  double waiting_seconds = 0;  // the model stood still for experts
  // Prefetching; all of it is counted with the decode passes, which cause it.
  uint64_t prefetches = 0;  // experts that began to be read on the chance
  uint64_t prefetched_bytes = 0;
  uint64_t useful_prefetches = 0;  // wanted later, while still there
  uint64_t useful_bytes = 0;
  uint64_t wasted_bytes = 0;  // of experts that left, or were given up half read, without having been wanted
  uint64_t foreseeable = 0;   // demands of layers for which there was a forecast
  uint64_t foreseen = 0;      // of them, those that it held
  uint64_t expected = 0;      // experts in all of the forecasts

  [[nodiscard]] uint64_t all_misses() const { return misses[0] + misses[1]; }
};

struct ExpertStoreStats {
  std::array<PhaseStats, kPhases> phases{};  // by Phase
  std::string policy;
  std::string prefetch;                // off, on or auto
  bool prefetch_switched_off = false;  // auto: tried, and does not pay at present
  uint64_t slots = 0;
  uint64_t slot_bytes = 0;  // of all slots, used or not
  uint64_t resident_experts = 0;
  uint64_t resident_bytes = 0;                            // memory of slots that were ever used
  uint64_t loaded_bytes = 0;                              // read before the first pass: resident experts
  std::set<ExpertKey> read_experts;                       // each once, however often it was read
  std::map<LayerId, std::set<std::string>> opened_files;  // by layer, relative to the repository
  std::optional<VramStats> vram;                          // of the tier above, where a GPU holds some of the experts

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
