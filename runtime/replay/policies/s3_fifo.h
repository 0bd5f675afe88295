// S3-FIFO (Yang et al., SOSP 2023): what arrives waits in a small queue of a tenth of the slots and leaves by its end
// unless it was used again; then it moves to the main queue, where each use, up to three, spares it once. What left the
// small queue is remembered for as many arrivals as there are slots, and goes to the main queue at once when it comes
// again. Drafts do not count as uses.
// Threads, lifetime, errors: see eviction_policy.h. Amortised O(log n) a use.
#pragma once

#include <list>
#include <unordered_map>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/victim_order.h"

namespace dspack::runtime {

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
  using Arrival = std::pair<uint64_t, ExpertKey>;  // by its number
  using Queue = VictimOrder<Arrival>;              // oldest first
  using Ghosts = std::list<ExpertKey>;             // oldest first
  struct Place {
    bool is_small = true;
    uint8_t uses = 0;      // since it came, or since it was last spared
    uint64_t arrival = 0;  // to its queue, or since then to its end
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

}  // namespace dspack::runtime
