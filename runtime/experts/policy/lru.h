// Evicts the least recently used expert. With fewer slots than one token's experts it never hits: each layer takes the
// slots of the layers that are needed next. See RecencyOrder for prefills and drafts.
// Threads, lifetime, errors: see eviction_policy.h. O(log n) per use.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/victim_order.h"

namespace dspack::runtime {

/// The experts in slots, from the least to the most recently used. Uses are ordered by pass, then by the last token of
/// the pass that used the expert, so that a prefill leaves the order that its tokens would have left one by one: an
/// expert that only its first tokens used is old at once, whatever its layer. O(log n) per change.
class RecencyOrder {
 public:
  struct Entry {
    uint64_t pass = 0;      // pass + 1; 0: only drafts wanted the expert
    uint32_t row = 0;       // UINT32_MAX - last_row, so that newer tokens come later
    uint64_t sequence = 0;  // orders the uses of one token
    ExpertKey key;
    auto operator<=>(const Entry&) const = default;
  };

  /// An expert in a slot was used. A draft changes nothing.
  void hit(const ExpertUse& use);
  /// An expert got a slot. One for a draft is the first to go, until a hit reports that the draft was accepted.
  void insert(const ExpertUse& use);
  /// An expert got a slot because it is likely to be used in this pass.
  void insert_prefetched(ExpertKey key, uint64_t pass);
  void remove(ExpertKey key);
  /// See EvictionPolicy.
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
