// An eviction policy that sees what a run cannot: the lasting parts of the scores that made-up routes come from. It
// gives up the expert with the least of them. What it closes of the gap between LRU and the optimum is about what a
// policy can learn from routes at best; the rest is chance. Threads, errors: see eviction_policy.h. O(n) a victim.
#pragma once

#include <set>
#include <vector>

#include "runtime/experts/eviction_policy.h"

namespace dspack::bench {

class HiddenStatePolicy final : public runtime::EvictionPolicy {
 public:
  /// `lasting` [passes][layers * experts], of layers from `first_layer` on; it must live as long as the policy.
  HiddenStatePolicy(const std::vector<std::vector<float>>& lasting, uint32_t first_layer, uint32_t experts)
      : lasting_(lasting), first_layer_(first_layer), experts_(experts) {}

  [[nodiscard]] std::string_view name() const override { return "hidden state"; }
  void hit(const runtime::ExpertUse& use) override { pass_ = use.pass; }
  void inserted(const runtime::ExpertUse& use) override {
    pass_ = use.pass;
    in_slots_.insert(use.key);
  }
  void prefetched(ExpertKey key, uint64_t /*pass*/) override { in_slots_.insert(key); }
  void removed(ExpertKey key) override { in_slots_.erase(key); }
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override {
    std::optional<ExpertKey> least;
    for (const ExpertKey key : in_slots_) {
      if ((!least || value(key) < value(*least)) && may_go(key)) least = key;
    }
    return least;
  }

 private:
  [[nodiscard]] float value(ExpertKey key) const {
    return lasting_[pass_][size_t{key.layer.value - first_layer_} * experts_ + key.expert.value];
  }

  const std::vector<std::vector<float>>& lasting_;
  uint32_t first_layer_;
  uint32_t experts_;
  uint64_t pass_ = 0;
  std::set<ExpertKey> in_slots_;
};

}  // namespace dspack::bench
