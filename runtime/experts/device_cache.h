// A device's cache of experts. With some of them: kept as they are requested, and copied from the host's memory on a
// queue of their own. The expert stays pinned in the host's memory until the copy has run; work that reads the slot
// waits on the device for its arrival. An expert that is established here is the first to leave the host's memory, so
// that the two hold mostly different ones; an evicted expert goes back there or is dropped. A few slots are a window
// for experts that are not kept. With all of them: read before the run and pinned, so that one table a layer has every
// expert by its number. Threads: single-thread. Lifetime: borrows device and host store; both queues have run before it
// goes. Errors: budget; unsupported (experts of one layer that differ in how they are stored); those of reading;
// cancelled.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "format/progress.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/experts/expert_layout.h"
#include "runtime/experts/expert_returns.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

/// Experts that pass through: while one is computed the next one is copied.
inline constexpr uint64_t kVramWindow = 2;
/// Bytes of one copy of an expert that nobody waits for, and how many of these are under way at most. The link takes
/// copies in the order in which they were enqueued, so a demand waits for no more than that: 80 us at 52 GB/s (PCIe 5),
/// 160 us at 26 (PCIe 4). One runs while the host enqueues the next.
inline constexpr uint64_t kAheadBytes = 2ULL << 20;
inline constexpr size_t kPiecesAhead = 2;
/// Slots of a pool that are kept empty where experts go back to the host's memory, so that a demand need not wait until
/// one has left: about as many as a layer misses. A sixteenth of the slots at most.
inline constexpr uint64_t kKeptEmpty = 4;
/// Experts in the host's memory while all are read: enough that reading does not pause for an upload, also where one
/// thread reads an expert from its beginning to its end. V3: 530 MB.
inline constexpr uint64_t kReaderSlots = 12;

struct DeviceCacheOptions {
  DeviceExperts experts;
  uint64_t slots = 0;  // in all, besides the window
  PolicyFactory policy;
  uint64_t seed = 1;
  PrefetchMode prefetch = PrefetchMode::off;
  uint64_t ahead_bytes = kAheadBytes;  // of a piece
  /// Whether experts that leave go back to the host's memory, if that has fewer slots than there are experts.
  bool returns = false;
};

struct DeviceSlot final : CacheSlot {
  uint32_t entry = 0;                          // in its pool's table
  std::shared_ptr<kernels::Event> arrival;     // of what was copied there last; null: nothing was, or long ago
  std::shared_ptr<kernels::Event> used_until;  // the last work that reads it; null: none
  bool is_wanted_again = false;                // since it was sent back to the host
};

class DeviceCache {
 public:
  /// For some experts, which are copied from `host`.
  [[nodiscard]] static Result<std::unique_ptr<DeviceCache>> make(kernels::Device& device,
                                                                 const format::Checkpoint& checkpoint,
                                                                 ExpertStore& host, const DeviceCacheOptions& options);
  /// With all experts, read now. `progress` hears of the bytes that have reached the device; nullptr: not wanted.
  [[nodiscard]] static Result<std::unique_ptr<DeviceCache>> load(kernels::Device& device, Tier& tier,
                                                                 const DeviceExperts& experts,
                                                                 format::Progress* progress,
                                                                 const std::stop_token& stop);
  /// Device memory of `slots` and their window.
  [[nodiscard]] static uint64_t bytes_for(uint64_t expert_bytes, uint64_t slots) {
    return expert_bytes * (slots + kVramWindow);
  }
  /// Device memory of all experts; nothing is read. Errors: those of `load` that the catalogue tells.
  [[nodiscard]] static Result<uint64_t> bytes_for_all(const format::Checkpoint& checkpoint,
                                                      const DeviceExperts& experts);
  ~DeviceCache();
  DeviceCache(const DeviceCache&) = delete;
  DeviceCache& operator=(const DeviceCache&) = delete;

  /// Whether it was loaded with all experts.
  [[nodiscard]] bool holds_all() const { return host_ == nullptr; }
  [[nodiscard]] bool holds(ExpertKey key) const { return cache_->find(key) != nullptr; }
  /// Those that are there, in no order.
  [[nodiscard]] std::vector<ExpertKey> held() const { return cache_->held(); }

  void begin_pass(const ExpertPass& pass) { cache_->begin_pass(pass, std::chrono::steady_clock::now()); }
  void accept_drafts(uint32_t rows) { cache_->accept_drafts(rows); }
  /// The layer's demands. What was expected of it, is not among them and has not been copied whole is given up.
  void begin_layer(LayerId layer, std::span<const ExpertDemand> demands);
  /// The slot of an expert that is there or on its way, counted as used; nullptr: it is missing.
  [[nodiscard]] DeviceSlot* use(LayerId layer, const ExpertDemand& demand);
  /// The entries in table(layer) of the experts that are there whole, by number, kNoEntry for the others: for work that
  /// is enqueued before the host knows what the layer wants. They stay until `let_go`, or until others are held.
  /// Borrowed as long. Empty: none is there.
  [[nodiscard]] std::span<const uint32_t> hold(LayerId layer);
  void let_go();
  /// Enqueues the copy of a missing expert. If it may be kept, a decode pass keeps it, and drops what the policy gives
  /// up; a prefill keeps it only where there is room. What is not kept is in a slot of the window, which holds it until
  /// the next but one.
  [[nodiscard]] DeviceSlot& move(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool may_keep);
  /// The CPU has computed a missing expert. With `promotes` it is copied ahead for the next time, unless other experts
  /// are on their way.
  void computed_by_host(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool promotes);

  /// Experts that the next layer is likely to want: those that the host has are copied ahead.
  void prefetch(LayerId layer, std::span<const ExpertId> experts);
  /// Enqueues pieces of what is copied ahead: one expert at a time, kPiecesAhead of its pieces, and none while a demand
  /// is under way. False: there is nothing to copy. What is demanded before all of it was enqueued becomes a demand.
  /// Likewise pieces of an expert that goes back to the host, whatever else is under way.
  bool advance();
  [[nodiscard]] bool is_prefetching() const { return cache_->is_prefetching(); }

  /// Lets go of the host's memory of copies that have run.
  void reap();
  /// Waits for the oldest copy, if one is under way, or for what is copied ahead. Whether there was one.
  bool reap_oldest();
  /// When one more expert of the layer would have been copied.
  [[nodiscard]] Eta copied_eta(LayerId layer) const;

  /// Precondition: the layer has experts here.
  [[nodiscard]] const kernels::ExpertTable& table(LayerId layer) const { return *pool_of(layer).table; }
  // Of a layer without experts here: 0.
  [[nodiscard]] uint64_t expert_bytes(LayerId layer) const;
  /// Slots of the layer's pool that hold nothing, but for those that are kept so.
  [[nodiscard]] uint64_t empty_slots(LayerId layer) const;

  /// Of experts that are kept as they are wanted.
  [[nodiscard]] VramStats stats() const;
  /// Misses of both phases.
  [[nodiscard]] MissCounts miss_counts() const;
  /// Of loading all experts: what was read, and the memory that they take.
  [[nodiscard]] const ExpertStoreStats& loading() const { return loading_; }

 private:
  struct Pool {
    ExpertLayout layout;
    std::unique_ptr<kernels::Buffer> memory;
    std::unique_ptr<kernels::ExpertTable> table;
    std::vector<DeviceSlot> window;  // its entries are the first
    uint64_t turn = 0;               // of the window
  };
  struct Copy {
    std::optional<ExpertLease> host;  // absent: more pieces of the expert follow
    std::shared_ptr<kernels::Event> begin, end;
    uint64_t bytes = 0;
    bool is_whole = false;  // an expert, and not a piece of one
    bool is_ahead = false;  // nobody waited for it when it was enqueued
  };
  /// An expert that nobody waits for, of which pieces are left to be enqueued.
  struct Ahead {
    DeviceSlot* slot = nullptr;
    ExpertLease host;
    std::vector<ExpertPiece> pieces;
    size_t next = 0;  // of pieces
  };
  struct Sizes {
    std::vector<SlotLayout> layouts;
    std::vector<uint64_t> slots;  // of each
    uint64_t window = 0;          // of each
  };
  DeviceCache(kernels::Device& device, ExpertStore* host, uint32_t experts, uint64_t ahead_bytes)
      : host_(host), experts_(experts), ahead_bytes_(ahead_bytes), copies_(device.make_queue()) {}
  Result<void> allocate(kernels::Device& device, const std::map<LayerId, ExpertLayout>& layouts, const Sizes& sizes,
                        ExpertCache::Options options);
  /// Reads all experts of a layer.
  Result<void> fill(LayerId layer, uint32_t experts, ExpertStore& reader, format::Progress& progress,
                    const std::stop_token& stop);
  void keep_loading(const ExpertStoreStats& reading);
  [[nodiscard]] const Pool& pool_of(LayerId layer) const;
  [[nodiscard]] VramPhaseStats& counts() { return counts_[static_cast<size_t>(cache_->pass().phase)]; }
  /// A slot for the expert, which it holds from then on; nullptr: none may be had.
  [[nodiscard]] DeviceSlot* insert(const ExpertUse& use, ExpertCache::Evict evict);
  void copy(const Pool& pool, DeviceSlot& slot, ExpertLease host);
  /// The slot's former work is waited for by what is copied there next.
  void wait_for_work(DeviceSlot& slot);
  void start_ahead(const Pool& pool, DeviceSlot& slot, ExpertLease host);
  /// The next expected expert that the host has and the device lacks. False: there is none, or no slot for it.
  bool start_expected();
  /// Precondition: ahead_.
  void enqueue_piece(bool is_ahead);
  /// All that is left of it.
  void finish_ahead();
  /// Its slot is empty again.
  void drop_ahead();
  [[nodiscard]] size_t pieces_under_way() const;
  [[nodiscard]] bool has_demand_under_way() const { return pieces_under_way() < under_way_.size(); }
  void finish(const Copy& copy);
  /// Whether what leaves a pool goes back to the host's memory.
  [[nodiscard]] bool sends_back(const ExpertCache::Pool& pool) const;
  /// Whether anything is on its way to the host, or may go there.
  bool advance_returns();
  /// Sends the next expert that would leave on its way. False: none has to, or may.
  bool begin_return();
  /// Its expert is in the host's memory.
  void settle_return(DeviceSlot& slot);

  ExpertStore* host_;  // null: all experts are here
  uint32_t experts_;   // of a layer
  uint64_t ahead_bytes_;
  std::vector<Pool> pools_;
  std::optional<ExpertCache> cache_;
  std::unique_ptr<kernels::Queue> copies_;
  std::deque<Copy> under_way_;  // in order
  std::optional<Ahead> ahead_;
  std::optional<ExpertReturns> returns_;
  std::vector<uint32_t> entries_;  // of what is held
  std::vector<DeviceSlot*> held_;
  WorkRate link_;
  std::array<VramPhaseStats, kPhases> counts_{};  // by Phase; what the cache counts is added by stats()
  ExpertStoreStats loading_;
};

}  // namespace dspack::runtime
