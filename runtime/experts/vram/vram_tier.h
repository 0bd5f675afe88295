// Experts in device memory over those in the host's: which are kept there, and the copies that bring them, on a queue
// of their own. A copy reads the expert where the host has it, which stays pinned until the copy has run; whoever
// computes from the slot waits for the arrival on the device. An expert that is kept here is the first to leave the
// host's memory, so that the two hold different ones as far as possible; what leaves here is dropped. Threads:
// single-thread. Lifetime: borrows device and host store; both queues have run before it goes. Errors: those of
// VramPool::make.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "runtime/experts/prefetch_governor.h"
#include "runtime/experts/streamed_store.h"
#include "runtime/experts/vram/miss_choice.h"
#include "runtime/experts/vram/vram_pool.h"
#include "runtime/experts/vram/vram_stats.h"

namespace dspack::runtime {

struct VramTierOptions {
  DeviceExperts experts;
  uint64_t slots = 0;  // of the cache, in all
  PolicyFactory policy;
  uint64_t seed = 1;
  PrefetchMode prefetch = PrefetchMode::off;
};

class VramTier {
 public:
  [[nodiscard]] static Result<std::unique_ptr<VramTier>> make(kernels::Device& device, StreamedStore& host,
                                                              const VramTierOptions& options);
  ~VramTier();
  VramTier(const VramTier&) = delete;
  VramTier& operator=(const VramTier&) = delete;

  void begin_pass(const ExpertPass& pass);
  void accept_drafts(uint32_t rows);

  /// The layer's demands: what prefetching expected of it ends.
  void begin_layer(LayerId layer, std::span<const ExpertDemand> demands);
  /// The slot of an expert that is there or on its way, counted as used; nullptr: it is missing.
  [[nodiscard]] VramSlot* use(LayerId layer, const ExpertDemand& demand);
  /// Enqueues the copy of a missing expert. If it may be kept, a decode pass keeps it, and drops what the policy gives
  /// up; a prefill keeps it only where there is room.
  [[nodiscard]] VramSlot& move(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool may_keep = true);
  [[nodiscard]] bool holds(ExpertKey key) const {
    return pool_of_layer_.contains(key.layer) && pool_of(key.layer).find(key) != nullptr;
  }
  /// The CPU has computed a missing expert.
  void count_computed(LayerId layer, const ExpertDemand& demand);
  /// Enqueues the copy of an expert that the CPU has computed, for the next time; not while other copies are under way.
  void promote(LayerId layer, const ExpertDemand& demand, ExpertLease host);
  /// The device was idle for want of experts.
  void count_waiting(Phase phase, double seconds) {
    stats_.phases[static_cast<size_t>(phase)].waiting_seconds += seconds;
  }

  /// Experts that the next layer is likely to want: those that the host has begin to be copied. Demands go first.
  void prefetch(LayerId layer, std::span<const ExpertId> experts);
  [[nodiscard]] bool is_prefetching() const;

  /// Lets go of the host's memory of copies that have run.
  void reap();
  /// Waits for the oldest copy, if one is under way. Whether there was one.
  bool reap_oldest();
  /// Seconds until the copies under way have run, by the rates so far.
  [[nodiscard]] double backlog_seconds() const;

  [[nodiscard]] const kernels::ExpertTable& table(LayerId layer) const { return pool_of(layer).table(); }
  [[nodiscard]] uint64_t expert_bytes(LayerId layer) const { return pool_of(layer).layout().expert_bytes; }
  [[nodiscard]] MissRates& rates() { return rates_; }
  [[nodiscard]] const MissRates& rates() const { return rates_; }
  /// Slots of the layer's cache that hold nothing.
  [[nodiscard]] uint64_t empty_slots(LayerId layer) const {
    return pool_of_layer_.contains(layer) ? pool_of(layer).slots() - pool_of(layer).used() : 0;
  }
  [[nodiscard]] VramStats stats() const;

 private:
  enum class CopyReason { wanted, prefetch };
  struct Copy {
    ExpertLease host;
    std::shared_ptr<kernels::Event> begin, end;
    uint64_t bytes = 0;
    CopyReason reason = CopyReason::wanted;
  };
  VramTier(kernels::Device& device, StreamedStore& host, const VramTierOptions& options);
  [[nodiscard]] VramPool& pool_of(LayerId layer) const;
  [[nodiscard]] VramPhaseStats& counts() { return stats_.phases[static_cast<size_t>(uses_.pass().phase)]; }
  [[nodiscard]] VramPhaseStats& prefetch_counts() { return stats_.phases[static_cast<size_t>(Phase::decode)]; }
  /// A slot of the cache for the expert, which it holds from then on; nullptr: none may be had.
  [[nodiscard]] VramSlot* take(VramPool& pool, ExpertKey key, bool may_evict);
  void evict(VramPool& pool, VramSlot& slot);
  void copy(VramPool& pool, VramSlot& slot, ExpertLease host, CopyReason reason);
  void finish(const Copy& copy);
  void end_pass();

  StreamedStore& host_;
  VramTierOptions options_;
  std::vector<std::unique_ptr<VramPool>> pools_;
  std::map<LayerId, VramPool*> pool_of_layer_;
  std::unique_ptr<kernels::Queue> copies_;
  std::deque<Copy> under_way_;  // in order
  PassUses uses_;
  std::set<ExpertKey> wanted_;    // by the layer at work
  std::set<ExpertKey> expected_;  // prefetched for the next one
  PrefetchGovernor governor_;
  bool has_evicted_ = false;
  struct PassCourse {
    std::chrono::steady_clock::time_point start;
    VramPhaseStats before;  // of decode passes
    uint64_t layers = 0;
  } course_;
  MissRates rates_;
  VramStats stats_;
};

}  // namespace dspack::runtime
