// Least recently used: the expert that was used longest ago leaves.
// Threads: single-thread. Errors: none.
#pragma once

#include <list>
#include <map>

#include "runtime/experts/eviction_policy.h"

namespace dspack::runtime {

class LruPolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "lru"; }
  void hit(const ExpertUse& use) override;
  void inserted(const ExpertUse& use) override;
  void prefetched(ExpertKey key, uint64_t pass) override;
  void removed(ExpertKey key) override;
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override;

 private:
  std::list<ExpertKey> order_;  // used longest ago first
  std::map<ExpertKey, std::list<ExpertKey>::iterator> places_;
};

}  // namespace dspack::runtime
