// Experts in slots, in the order of eviction. Held experts are set aside, so that a search for a victim does not pass
// them repeatedly; they keep their place.
// Threads: single-thread. Errors: none. O(log n) each; let_go O(log n) per held expert.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>

#include <ext/pb_ds/assoc_container.hpp>
#include <ext/pb_ds/tree_policy.hpp>

namespace dspack::runtime {

template <class Entry, class Before = std::less<Entry>>
class VictimOrder {
 public:
  void insert(const Entry& entry) { order_.insert(entry); }
  void erase(const Entry& entry) {
    if (!order_.erase(entry)) held_.erase(entry);
  }
  void hold(const Entry& entry) {
    if (order_.erase(entry)) held_.insert(entry);
  }
  void let_go() {
    for (const Entry& entry : held_)
      order_.insert(entry);
    held_.clear();
  }

  /// Includes the held entries.
  [[nodiscard]] size_t size() const { return order_.size() + held_.size(); }
  [[nodiscard]] bool empty() const { return size() == 0; }

  [[nodiscard]] size_t held() const { return held_.size(); }

  // The entries that are not held.
  [[nodiscard]] auto begin() const { return order_.begin(); }
  [[nodiscard]] auto end() const { return order_.end(); }
  /// From the entry that has `before` others before it.
  [[nodiscard]] auto at(size_t before) const { return order_.find_by_order(before); }

 private:
  using Tree = __gnu_pbds::tree<Entry, __gnu_pbds::null_type, Before, __gnu_pbds::rb_tree_tag,
                                __gnu_pbds::tree_order_statistics_node_update>;
  Tree order_;
  std::set<Entry, Before> held_;
};

}  // namespace dspack::runtime
