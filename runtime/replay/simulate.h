// Drives a policy over recorded routes as the expert store would, without data, and counts the reads. A layer requests
// all of its experts at once and holds them until it is done; if there are more than slots, the work runs in waves, and
// experts of a finished wave may be evicted. A loaded expert always takes a slot (no bypass), but may be the next to be
// evicted. Prefetch is off.
// Threads: thread-safe (each call by itself). Errors: none.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/victim_order.h"
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

/// The optimal policy, which knows the future: it evicts the expert whose next use is furthest away, and so has the
/// fewest misses (Belady 1966). Like every policy it must load each demanded expert into a slot (no bypass), and cannot
/// evict experts that the current layer holds. O(log n) per use. Threads, lifetime, errors: see eviction_policy.h.
class BeladyPolicy final : public EvictionPolicy {
 public:
  /// For a replay of just this workload.
  explicit BeladyPolicy(const Workload& workload);

  [[nodiscard]] std::string_view name() const override { return "optimum"; }
  void hit(const ExpertUse& use) override;
  void inserted(const ExpertUse& use) override;
  void prefetched(ExpertKey key, uint64_t pass) override;
  void removed(ExpertKey key) override;
  void hold(ExpertKey key) override;
  void let_go() override { in_slots_.let_go(); }
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override;

 private:
  struct Future {
    std::vector<std::pair<uint64_t, uint64_t>> uses;  // step and pass, ascending
    size_t past = 0;                                  // number of uses that have passed
    [[nodiscard]] uint64_t next() const;
  };
  Future& advance(const ExpertUse& use);

  std::unordered_map<uint64_t, Future> futures_;
  using NextUse = std::pair<uint64_t, ExpertKey>;         // step of the next use
  VictimOrder<NextUse, std::greater<NextUse>> in_slots_;  // furthest first
};

/// `policy` is new. Precondition: slots >= 1.
[[nodiscard]] ReplayResult simulate(const Workload& workload, uint64_t slots, EvictionPolicy& policy);

}  // namespace dspack::runtime
