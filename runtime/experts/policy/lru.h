// Gives up the expert that was used longest ago. Below one token's experts it never hits: each layer takes the slots of
// the layers that are needed next. See recency_order.h for prefills and drafts.
// Threads, lifetime, errors: see eviction_policy.h. O(log n) a use.
#pragma once

#include "runtime/experts/policy/recency_order.h"

namespace dspack::runtime {

class LruPolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "lru"; }
  void hit(const ExpertUse& use) override { recency_.hit(use); }
  void inserted(const ExpertUse& use) override { recency_.insert(use); }
  void prefetched(ExpertKey key, uint64_t pass) override { recency_.insert_prefetched(key, pass); }
  void removed(ExpertKey key) override { recency_.remove(key); }
  void hold(ExpertKey key) override { recency_.hold(key); }
  void let_go() override { recency_.let_go(); }
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override {
    for (const RecencyOrder::Entry& entry : recency_.order()) {
      if (may_go(entry.key)) return entry.key;
    }
    return std::nullopt;
  }

 private:
  RecencyOrder recency_;
};

}  // namespace dspack::runtime
