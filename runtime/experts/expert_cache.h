// Experts in slots of memory: which expert lies in which slot, which one leaves for another, and what the next layer is
// expected to want. The host's memory (streamed_store.h) and a device's (device_cache.h) are each one such cache, whose
// owner makes the slots and brings the bytes.
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

/// A slot as the cache sees it; its owner's slots say more.
struct CacheSlot {
  virtual ~CacheSlot() = default;
  uint64_t number = 0;        // among all slots of the cache, in the order in which they were made
  size_t pool = 0;            // by layout
  bool is_used = false;       // holds `key`
  ExpertKey key;              // if used
  ExpertWeights weights;      // if ready
  bool is_ready = false;      // owner's: the weights can be used, and may leave
  bool is_prefetch = false;   // brought before it was wanted, and not wanted so far
  uint64_t announced_in = 0;  // the pass that brought it because it will want it, until it does; 0: none
  uint32_t pins = 0;          // owner's: users; a pinned expert stays
  uint32_t uses = 0;          // since the expert came
  uint64_t bytes = 0;         // owner's: of the expert, as they are counted
};

class ExpertCache {
 public:
  struct Options {
    PolicyFactory policy;
    uint64_t seed = 1;
    PrefetchMode prefetch = PrefetchMode::off;
    /// Makes the `place`-th slot of a pool, when it is first wanted. Errors: budget.
    std::function<Result<std::unique_ptr<CacheSlot>>(size_t pool, uint64_t place)> make_slot;
    /// An expert is about to leave for another. Empty: nothing is done.
    std::function<void(const CacheSlot&)> evicting = {};
  };
  /// What leaves where no slot is empty: anything that may (what is near last, while layers are announced), all but
  /// what is near, or nothing.
  enum class Evict { any, distant, none };

  struct Pool {
    SlotLayout layout;
    uint64_t limit = 0;  // slots
    std::unique_ptr<EvictionPolicy> policy;
    uint64_t made = 0;
    std::vector<CacheSlot*> empty = {};
    std::vector<ExpertKey> spares = {};  // in the order in which they became so
  };

  /// `slots`: of each layout.
  ExpertCache(std::vector<SlotLayout> layouts, const std::vector<uint64_t>& slots, Options options);

  /// A pass begins; the one before ended at `end`, which is what the governor of prefetching measures.
  void begin_pass(const ExpertPass& pass, std::chrono::steady_clock::time_point end);
  [[nodiscard]] const ExpertPass& pass() const { return pass_; }
  /// The first `rows` drafted rows of the pass were accepted: what they used counts as used. Once a pass.
  void accept_drafts(uint32_t rows);
  /// What a layer wants: the forecast ends, and is compared if it was of this layer.
  void begin_layer(LayerId layer, std::span<const ExpertDemand> demands);

  /// The demand as policies are told of it.
  [[nodiscard]] ExpertUse use_of(LayerId layer, const ExpertDemand& demand) const;
  [[nodiscard]] bool has_layer(LayerId layer) const { return pool_of_layer_.contains(layer); }
  /// nullptr: the expert is in no slot.
  [[nodiscard]] CacheSlot* find(ExpertKey key) const;
  /// Counts the use of an expert that has a slot; late: that is still on its way there.
  void hit(CacheSlot& slot, const ExpertUse& use, bool is_late);
  /// An empty slot for an expert that has none, which is found under its key from then on; nullptr: none may be had
  /// now. The use is not counted as a miss yet, since bringing the expert may fail.
  [[nodiscard]] Result<CacheSlot*> insert(const ExpertUse& use, Evict evict);
  void count_miss(const ExpertUse& use);
  /// The same for an expert that next_announced has named. Once it is wanted, it does not count as a hit: it is the
  /// miss that it would have been.
  [[nodiscard]] Result<CacheSlot*> insert_announced(const ExpertUse& use);
  /// The same for an expert that may come to be wanted. Counted by the owner.
  [[nodiscard]] Result<CacheSlot*> insert_prefetch(ExpertKey key);
  /// The same for an expert that comes back from faster memory.
  [[nodiscard]] Result<CacheSlot*> insert_returned(ExpertKey key);
  /// An expert is used that lies in faster memory alone.
  void used_elsewhere(const ExpertUse& use);
  /// What would leave next for another expert of the pool; nullptr: nothing may.
  [[nodiscard]] CacheSlot* next_to_leave(const Pool& pool, Evict evict) const;
  /// An expert leaves: its slot, which has no pins, is empty.
  void evict(CacheSlot& slot);
  /// Empties a slot without pins.
  void clear(CacheSlot& slot);
  /// A spare expert is in faster memory as well. Spare ones leave first, the one that was said last before the others:
  /// it was wanted there last, and will be there longest.
  void set_spare(ExpertKey key, bool is_spare);

  /// A layer that is yet to be run in this pass will want these, after all that was announced before.
  void announce(LayerId layer, std::span<const ExpertDemand> demands);
  /// The next announced expert that has no slot, the same until it gets one; nullopt: there is none.
  [[nodiscard]] std::optional<ExpertUse> next_announced();
  /// Announced experts that were inserted, and are not wanted yet.
  [[nodiscard]] uint64_t announced_ahead() const { return announced_ahead_; }

  /// Whether the present pass prefetches.
  [[nodiscard]] bool is_prefetching() const;
  /// What the next layer is likely to want, most likely first. A former forecast ends.
  void expect(LayerId layer, std::span<const ExpertId> experts);
  void end_forecast();
  /// Each expected expert once, in order; nullopt: that was all.
  [[nodiscard]] std::optional<ExpertKey> next_expected();
  [[nodiscard]] bool has_expected() const { return next_expected_ < expected_.size(); }
  /// Whether the layer at work, the next one or one that was announced may need the expert.
  [[nodiscard]] bool is_near(ExpertKey key) const;

  /// Of the present pass's phase.
  [[nodiscard]] CacheCounts& counts() { return counts_[static_cast<size_t>(pass_.phase)]; }
  [[nodiscard]] CacheCounts& prefetch_counts() { return counts_[static_cast<size_t>(Phase::decode)]; }
  [[nodiscard]] const std::array<CacheCounts, kPhases>& all_counts() const { return counts_; }
  [[nodiscard]] const PrefetchGovernor& governor() const { return governor_; }

  [[nodiscard]] const std::vector<Pool>& pools() const { return pools_; }
  /// Precondition: has_layer.
  [[nodiscard]] const Pool& pool_of(LayerId layer) const { return pools_[pool_of_layer_.at(layer)]; }
  /// Slots that hold no expert, those that were not made included.
  [[nodiscard]] static uint64_t empty_slots(const Pool& pool) { return pool.limit - pool.made + pool.empty.size(); }
  /// All that were made, by number.
  [[nodiscard]] std::span<const std::unique_ptr<CacheSlot>> slots() const { return slots_; }
  /// The experts that are ready in a slot, in no order.
  [[nodiscard]] std::vector<ExpertKey> held() const;
  /// Slots that hold an expert.
  [[nodiscard]] uint64_t used() const { return by_key_.size(); }

 private:
  [[nodiscard]] Result<CacheSlot*> take(ExpertKey key, Evict evict);
  [[nodiscard]] std::optional<ExpertKey> victim(const Pool& pool, Evict evict) const;
  void judge_prefetch(std::chrono::steady_clock::time_point end);
  /// The announcement has come true, or comes to nothing. Whether there was one of this pass.
  bool end_announcement(CacheSlot& slot);

  Options options_;
  std::vector<Pool> pools_;
  std::map<LayerId, size_t> pool_of_layer_;
  std::vector<std::unique_ptr<CacheSlot>> slots_;
  std::unordered_map<uint64_t, CacheSlot*> by_key_;  // by packed key

  ExpertPass pass_;
  uint64_t passes_ = 0;                                     // the present one included
  std::vector<std::pair<uint32_t, ExpertUse>> draft_uses_;  // of this pass, with their first row
  std::vector<ExpertKey> expected_;                         // by the next layer
  size_t next_expected_ = 0;
  std::set<ExpertKey> wanted_;       // by the layer at work
  std::deque<ExpertUse> announced_;  // of layers that have not begun, in their order
  std::set<ExpertKey> announced_keys_;
  size_t next_announced_ = 0;
  uint64_t announced_ahead_ = 0;
  PrefetchGovernor governor_;
  bool has_evicted_ = false;
  struct PassCourse {
    std::chrono::steady_clock::time_point start;
    uint64_t layers = 0;
    CacheCounts before;                        // of decode passes
  } course_;                                   // of the present pass
  std::array<CacheCounts, kPhases> counts_{};  // by Phase
};

}  // namespace dspack::runtime
