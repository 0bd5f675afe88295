// The eviction policies that a replay compares: those of a run, others that measured worse than the default
// (docs/performance.md) and are kept for comparison, and the optimum.
// Threads, lifetime, errors: see eviction_policy.h. O(log n) per use.
#pragma once

#include <list>
#include <random>
#include <unordered_map>
#include <vector>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/policy/victim_order.h"
#include "runtime/replay/workload.h"

namespace dspack::runtime {

/// Evicts the expert that was used least, where a use counts half after 64 passes and is remembered while the expert is
/// in no slot (LFU with ageing; with a half-life of one pass it would be LRU). A prefill counts an expert's rows, but
/// no more than a decode of that length could leave. Drafts count only once accepted.
class LfuPolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "lfu"; }
  void hit(const ExpertUse& use) override;
  void inserted(const ExpertUse& use) override;
  void prefetched(ExpertKey key, uint64_t pass) override;
  void removed(ExpertKey key) override;
  void hold(ExpertKey key) override { in_slots_.hold({count_of(key), key}); }
  void let_go() override { in_slots_.let_go(); }
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override;

 private:
  double& count_of(ExpertKey key);
  void count(const ExpertUse& use);

  // log2 of the sum over uses of 2^(pass / half-life): all counts age alike, so their order does not change over time.
  std::unordered_map<uint64_t, double> counts_;
  VictimOrder<std::pair<double, ExpertKey>> in_slots_;  // least first
};

/// Evicts one of the least recently used experts at random: the oldest 8 % of the slots take part, which was the best
/// of several shares in a published replay of an expert cache (atlas #1148). Chance breaks LRU's cliff: with fewer
/// slots than one token's experts, some survive until they are needed again. A victim takes up to 8 % of n steps, or
/// O(log n) if the policy is told which experts are held.
class RandomOldPolicy final : public EvictionPolicy {
 public:
  RandomOldPolicy(uint64_t slots, uint64_t seed);

  [[nodiscard]] std::string_view name() const override { return "random-old"; }
  void hit(const ExpertUse& use) override { recency_.hit(use); }
  void inserted(const ExpertUse& use) override { recency_.insert(use); }
  void prefetched(ExpertKey key, uint64_t pass) override { recency_.insert_prefetched(key, pass); }
  void removed(ExpertKey key) override { recency_.remove(key); }
  void hold(ExpertKey key) override {
    recency_.hold(key);
    is_told_ = true;
  }
  void let_go() override { recency_.let_go(); }
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override;

 private:
  RecencyOrder recency_;
  bool is_told_ = false;  // told which experts are held: all others may go
  uint64_t candidates_;
  std::mt19937_64 random_;
};

/// S3-FIFO (Yang et al., SOSP 2023): an arrival enters a small queue of a tenth of the slots, and is evicted at its end
/// unless it was used again; then it moves to the main queue, where each use, up to three, spares it once. The last
/// `slots` experts evicted from the small queue are remembered, and go directly to the main queue if they come again.
/// Drafts do not count as uses.
class S3FifoPolicy final : public EvictionPolicy {
 public:
  explicit S3FifoPolicy(uint64_t slots);

  [[nodiscard]] std::string_view name() const override { return "s3-fifo"; }
  void hit(const ExpertUse& use) override;
  void inserted(const ExpertUse& use) override;
  void prefetched(ExpertKey key, uint64_t pass) override;
  void removed(ExpertKey key) override;
  void hold(ExpertKey key) override;
  void let_go() override;
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override;

 private:
  using Arrival = std::pair<uint64_t, ExpertKey>;  // number and expert
  using Queue = VictimOrder<Arrival>;              // oldest first
  using Ghosts = std::list<ExpertKey>;             // oldest first
  struct Place {
    bool is_small = true;
    uint8_t uses = 0;      // since it arrived or was last spared
    uint64_t arrival = 0;  // number of the arrival in its queue, or of the last move to the queue's end
  };
  void arrive(ExpertKey key);
  std::optional<ExpertKey> small_victim(const std::function<bool(ExpertKey)>& may_go);
  std::optional<ExpertKey> main_victim(const std::function<bool(ExpertKey)>& may_go);

  uint64_t slots_;
  uint64_t small_slots_;
  uint64_t arrivals_ = 0;
  Queue small_, main_;
  Ghosts ghosts_;
  std::unordered_map<uint64_t, Place> places_;
  std::unordered_map<uint64_t, Ghosts::iterator> remembered_;  // in ghosts_
};

/// All but the optimum, which is made for one workload; LRU first.
[[nodiscard]] std::span<const NamedPolicy> replay_policies();

/// The optimal policy, which knows the future: it evicts the expert whose next use is furthest away, and so has the
/// fewest misses (Belady 1966). Like every policy it must load each demanded expert into a slot (no bypass), and cannot
/// evict experts that the current layer holds.
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

}  // namespace dspack::runtime
