// The experts in slots, from the one used longest ago to the one used last. Uses are ordered by pass, then by the last
// token of the pass that used the expert, so that a prefill leaves the order that its tokens would have left one by
// one: what only its first tokens used is old at once, whichever layer it is of. Threads: single-thread. Errors: none.
// O(log n) a change.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/victim_order.h"

namespace dspack::runtime {

class RecencyOrder {
 public:
  struct Entry {
    uint64_t pass = 0;      // + 1; 0: nothing speaks for the expert
    uint32_t row = 0;       // of the last token, from the pass's end, negated
    uint64_t sequence = 0;  // orders the uses of one token
    ExpertKey key;
    auto operator<=>(const Entry&) const = default;
  };

  /// An expert that is in a slot is used. A draft changes nothing.
  void hit(const ExpertUse& use);
  /// An expert comes. One for a draft is the first to go, until a hit says that the draft was accepted.
  void insert(const ExpertUse& use);
  /// An expert comes that is likely to be used in this pass.
  void insert_prefetched(ExpertKey key, uint64_t pass);
  void remove(ExpertKey key);
  /// As EvictionPolicy has them.
  void hold(ExpertKey key);
  void let_go() { order_.let_go(); }
  /// Oldest first.
  [[nodiscard]] const VictimOrder<Entry>& order() const { return order_; }

 private:
  void put(ExpertKey key, uint64_t pass, uint32_t last_row);

  VictimOrder<Entry> order_;
  std::unordered_map<uint64_t, Entry> entries_;
  uint64_t sequence_ = 0;
};

}  // namespace dspack::runtime
