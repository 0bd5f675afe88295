// Gives up one of the experts that were used longest ago, at random: the oldest 8 % of the slots take part, which was
// best of several shares in a published replay of an expert cache (atlas #1148). Chance breaks LRU's cliff: below one
// token's experts some survive until they are needed again.
// Threads, lifetime, errors: see eviction_policy.h. O(log n) a use; a victim takes up to 8 % of n steps, or O(log n)
// where it is told which experts are held.
#pragma once

#include <random>

#include "runtime/experts/policy/recency_order.h"

namespace dspack::runtime {

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
  bool is_told_ = false;  // which experts are held: all others may go
  uint64_t candidates_;
  std::mt19937_64 random_;
};

}  // namespace dspack::runtime
