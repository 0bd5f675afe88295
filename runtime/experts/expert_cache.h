// Experts in slots of memory: which expert is in which slot, which one is evicted for another, and which ones the next
// layer is expected to want. Host memory (streamed_store.h) and a device's memory (device_cache.h) are each such a
// cache, whose owner makes the slots and fills them.
// Threads: single-thread (the owner's lock). Lifetime: slots stay where they are. Errors: those of making a slot.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/expert_store.h"
#include "runtime/experts/prefetch_governor.h"
#include "runtime/experts/slot_layouts.h"
#include "runtime/experts/store_stats.h"

namespace dspack::runtime {

/// A slot as the cache sees it; owners derive their own from it.
struct CacheSlot {
  virtual ~CacheSlot() = default;
  uint64_t number = 0;        // index among all slots of the cache, in the order of making
  size_t pool = 0;            // index of its layout
  bool is_used = false;       // holds `key`
  ExpertKey key;              // if used
  ExpertWeights weights;      // if ready
  bool is_ready = false;      // owner's: the weights are usable, and may be evicted
  bool is_prefetch = false;   // fetched before it was wanted, and not wanted so far
  uint64_t announced_in = 0;  // the pass that fetched it for an announced demand, until that comes; 0: none
  uint32_t pins = 0;          // owner's: users; a pinned expert stays
  uint32_t uses = 0;          // since the expert got the slot
  uint64_t bytes = 0;         // owner's: the size of the expert in statistics
};

class ExpertCache {
 public:
  struct Options {
    PolicyFactory policy;
    PrefetchMode prefetch = PrefetchMode::off;
    /// Makes the `place`-th slot of a pool, when it is first wanted. Errors: budget.
    std::function<Result<std::unique_ptr<CacheSlot>>(size_t pool, uint64_t place)> make_slot;
    /// Called before an expert is evicted. May be empty.
    std::function<void(const CacheSlot&)> evicting = {};
  };
  /// Which experts may be evicted if no slot is empty: any (near ones last, while layers are announced), only distant
  /// ones, which are not near, or none.
  enum class Evict { any, distant, none };

  struct Pool {
    SlotLayout layout;
    uint64_t limit = 0;  // slots
    std::unique_ptr<EvictionPolicy> policy;
    uint64_t made = 0;
    std::vector<CacheSlot*> empty = {};
    std::vector<ExpertKey> spares = {};  // the oldest first
  };

  /// `slots`: per layout.
  ExpertCache(std::vector<SlotLayout> layouts, const std::vector<uint64_t>& slots, Options options);

  /// Begins a pass. The previous one ended at `end`, from which the prefetch governor takes its duration.
  void begin_pass(const ExpertPass& pass, std::chrono::steady_clock::time_point end);
  [[nodiscard]] const ExpertPass& pass() const { return pass_; }
  /// The first `rows` drafted rows of the pass were accepted: their uses count now. Once a pass.
  void accept_drafts(uint32_t rows);
  /// Begins a layer with its demands. Ends the forecast, and counts how good it was if it was for this layer.
  void begin_layer(LayerId layer, std::span<const ExpertDemand> demands);

  /// The demand in the form that policies take.
  [[nodiscard]] ExpertUse use_of(LayerId layer, const ExpertDemand& demand) const;
  [[nodiscard]] bool has_layer(LayerId layer) const { return pool_of_layer_.contains(layer); }
  /// nullptr: the expert is in no slot.
  [[nodiscard]] CacheSlot* find(ExpertKey key) const;
  /// Counts the use of an expert that has a slot; late: it is still being fetched.
  void hit(CacheSlot& slot, const ExpertUse& use, bool is_late);
  /// Assigns an empty slot to an expert that has none, evicting one as `evict` allows; `find` returns it from then on.
  /// nullptr: none is available now. Counts no miss yet, since fetching the expert may fail.
  [[nodiscard]] Result<CacheSlot*> insert(const ExpertUse& use, Evict evict);
  void count_miss(const ExpertUse& use);
  /// The same for an expert returned by next_announced. Its demand does not count as a hit later: it is the miss that
  /// it would have been.
  [[nodiscard]] Result<CacheSlot*> insert_announced(const ExpertUse& use);
  /// The same for an expert that may be wanted. The owner counts it.
  [[nodiscard]] Result<CacheSlot*> insert_prefetch(ExpertKey key);
  /// The same for an expert that comes back from faster memory.
  [[nodiscard]] Result<CacheSlot*> insert_returned(ExpertKey key);
  /// An expert was used in faster memory.
  void used_elsewhere(const ExpertUse& use);
  /// The slot to evict next for another expert of the pool; nullptr: none may be.
  [[nodiscard]] CacheSlot* next_to_leave(const Pool& pool, Evict evict) const;
  /// Evicts the expert of a slot that has no pins.
  void evict(CacheSlot& slot);
  /// Empties a slot that has no pins, without counting an eviction.
  void clear(CacheSlot& slot);
  /// Marks an expert as spare, which means in faster memory as well. Spare experts are evicted first, the last marked
  /// before the others: it was wanted there last, and will stay there longest.
  void set_spare(ExpertKey key, bool is_spare);

  /// The demands of a later layer of this pass, after all that were announced before.
  void announce(LayerId layer, std::span<const ExpertDemand> demands);
  /// The next announced expert that has no slot, the same until it gets one; nullopt: none is left.
  [[nodiscard]] std::optional<ExpertUse> next_announced();
  /// Announced experts that were inserted and not wanted yet.
  [[nodiscard]] uint64_t announced_ahead() const { return announced_ahead_; }

  /// Whether the present pass prefetches.
  [[nodiscard]] bool is_prefetching() const;
  /// Experts that the next layer is likely to want, most likely first. Replaces the previous forecast.
  void expect(LayerId layer, std::span<const ExpertId> experts);
  void end_forecast();
  /// Returns each expected expert once, in order; nullopt: no more.
  [[nodiscard]] std::optional<ExpertKey> next_expected();
  [[nodiscard]] bool has_expected() const { return next_expected_ < expected_.size(); }
  /// Whether the current layer, the next one or an announced one may need the expert.
  [[nodiscard]] bool is_near(ExpertKey key) const;

  /// Counts of the present pass's phase.
  [[nodiscard]] CacheCounts& counts() { return counts_[static_cast<size_t>(pass_.phase)]; }
  [[nodiscard]] CacheCounts& prefetch_counts() { return counts_[static_cast<size_t>(Phase::decode)]; }
  [[nodiscard]] const std::array<CacheCounts, kPhases>& all_counts() const { return counts_; }
  [[nodiscard]] const PrefetchGovernor& governor() const { return governor_; }

  [[nodiscard]] const std::vector<Pool>& pools() const { return pools_; }
  /// Precondition: has_layer.
  [[nodiscard]] const Pool& pool_of(LayerId layer) const { return pools_[pool_of_layer_.at(layer)]; }
  /// Slots that hold no expert, including those not made yet.
  [[nodiscard]] static uint64_t empty_slots(const Pool& pool) { return pool.limit - pool.made + pool.empty.size(); }
  /// All slots made so far, by number.
  [[nodiscard]] std::span<const std::unique_ptr<CacheSlot>> slots() const { return slots_; }
  /// The experts that are ready in a slot, in no order.
  [[nodiscard]] std::vector<ExpertKey> held() const;
  /// Slots that hold an expert.
  [[nodiscard]] uint64_t used() const { return by_key_.size(); }

 private:
  [[nodiscard]] Result<CacheSlot*> take(ExpertKey key, Evict evict);
  [[nodiscard]] std::optional<ExpertKey> victim(const Pool& pool, Evict evict) const;
  void judge_prefetch(std::chrono::steady_clock::time_point end);
  /// Ends the announcement of a slot's expert, fulfilled or not. Returns whether it was for this pass.
  bool end_announcement(CacheSlot& slot);

  Options options_;
  std::vector<Pool> pools_;
  std::map<LayerId, size_t> pool_of_layer_;
  std::vector<std::unique_ptr<CacheSlot>> slots_;
  std::unordered_map<uint64_t, CacheSlot*> by_key_;  // by packed key

  ExpertPass pass_;
  uint64_t passes_ = 0;                                     // including the present one
  std::vector<std::pair<uint32_t, ExpertUse>> draft_uses_;  // uses by drafts in this pass, with their first row
  std::vector<ExpertKey> expected_;                         // the forecast for the next layer
  size_t next_expected_ = 0;
  std::set<ExpertKey> wanted_;       // demands of the current layer
  std::deque<ExpertUse> announced_;  // demands of layers that have not begun, in order
  std::set<ExpertKey> announced_keys_;
  size_t next_announced_ = 0;
  uint64_t announced_ahead_ = 0;
  PrefetchGovernor governor_;
  bool has_evicted_ = false;
  struct PassCourse {
    std::chrono::steady_clock::time_point start;
    uint64_t layers = 0;
    CacheCounts before;                        // counts of decode passes when it began
  } course_;                                   // the present pass
  std::array<CacheCounts, kPhases> counts_{};  // by Phase
};

}  // namespace dspack::runtime
