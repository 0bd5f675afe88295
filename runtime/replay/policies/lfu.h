// Gives up the expert that was used least, where a use counts half after 64 passes and remains known while the expert
// is not in a slot (LFU with ageing; with a half-life of one pass it would be LRU). A prefill counts an expert's rows,
// but not more than a decode of that length could leave. Drafts do not count until they have stood. Threads, lifetime,
// errors: see eviction_policy.h. O(log n) a use.
#pragma once

#include <unordered_map>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/victim_order.h"

namespace dspack::runtime {

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

  // log2 of the sum over uses of 2^(pass / half-life): all counts age alike, so their order does not change with time.
  std::unordered_map<uint64_t, double> counts_;
  VictimOrder<std::pair<double, ExpertKey>> in_slots_;  // least first
};

}  // namespace dspack::runtime
