// A device's cache of experts, with some or all of them.
//
// Some: an expert is copied from host memory when it is demanded, on a separate queue. It stays pinned in host memory
// until the copy has run; work that reads the slot waits on the device for its arrival. An expert that is established
// here is the first to be evicted from host memory, so that the two hold mostly different ones; an expert evicted here
// goes back there or is dropped. A few slots are a window for experts that are not kept. All: read before the run and
// pinned, so that one table per layer has every expert by its number.
//
//   host slot --copies_--> slot or window --> kernels       host slot <--returns_-- slot
//
//   begin_pass                            calls by the device's backend, per pass
//     hold                                per wave: pins the experts present before the host knows the routes
//     begin_layer, use, let_go            once the routes are known: the hits
//     move or computed_by_host            for each miss, computed here or by the CPU
//     advance, reap, prefetch             in between
//
// Threads: single-thread. Lifetime: borrows device and host store; both queues have run before it is destroyed. Errors:
// budget; unsupported (experts of one layer that differ in how they are stored); those of reading; cancelled.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "format/progress.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/experts/expert_layout.h"
#include "runtime/experts/expert_store.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

/// Window slots per pool, for experts that are not kept: while one is computed the next one is copied.
inline constexpr uint64_t kVramWindow = 2;
/// Bytes of one piece of an expert copied ahead of demand, and the most such pieces under way. The link takes copies in
/// the order in which they were enqueued, so a demand waits for no more than these pieces: 80 us at 52 GB/s (PCIe 5),
/// 160 us at 26 (PCIe 4). One runs while the host enqueues the next.
inline constexpr uint64_t kAheadBytes = 2ULL << 20;
inline constexpr size_t kPiecesAhead = 2;
/// Slots of a pool kept empty if evicted experts go back to host memory, so that a demand need not wait until one has
/// left: about as many as a layer misses. At most a sixteenth of the slots.
inline constexpr uint64_t kKeptEmpty = 4;
/// Host slots while all experts are read: enough that reading does not pause for an upload, even if one thread reads an
/// expert from its beginning to its end. V3: 530 MB.
inline constexpr uint64_t kReaderSlots = 12;

struct DeviceCacheOptions {
  DeviceExperts experts;
  uint64_t slots = 0;  // in total, without the window
  PolicyFactory policy;
  PrefetchMode prefetch = PrefetchMode::off;
  uint64_t ahead_bytes = kAheadBytes;  // per piece
  /// Whether evicted experts go back to host memory, if that has fewer slots than there are experts.
  bool returns = false;
};

struct DeviceSlot final : CacheSlot {
  uint32_t entry = 0;                          // index in its pool's table
  std::shared_ptr<kernels::Event> arrival;     // end of the last copy to the slot; null: none, or reached
  std::shared_ptr<kernels::Event> used_until;  // end of the last work that reads the slot; null: none
  bool is_wanted_again = false;                // used since it was sent back to the host
};

/// Copies experts back to host memory before a device evicts them, if the host has evicted them meanwhile: then the two
/// memories hold as many different experts as one memory of both sizes would. The copies run beside those to the
/// device: on a separate queue, one expert at a time, in pieces, and nothing waits for them. Borrows the store, and a
/// slot while its expert is being copied. An expert that a lost device has not copied is given up.
class ExpertReturns {
 public:
  /// Copies in pieces of at most `piece_bytes`.
  ExpertReturns(kernels::Device& device, ExpertStore& host, uint64_t piece_bytes)
      : host_(host), piece_bytes_(piece_bytes), queue_(device.make_queue()) {}
  /// Waits for the copy under way.
  ~ExpertReturns() { (void)finish(); }
  ExpertReturns(const ExpertReturns&) = delete;
  ExpertReturns& operator=(const ExpertReturns&) = delete;

  /// Whether an expert is being copied.
  [[nodiscard]] bool is_busy() const { return present_.has_value(); }
  /// Starts copying a slot's expert; the slot is pinned until the copy has ended. False: the host has no slot for the
  /// expert, or has the expert. Precondition: !is_busy().
  [[nodiscard]] bool begin(DeviceSlot& slot, const ExpertLayout& layout);
  /// Enqueues pieces, at most kPiecesAhead of them ahead. Returns the slot whose copy has ended; nullptr: none has.
  [[nodiscard]] DeviceSlot* advance();
  /// Waits for the copy to end and returns its slot; nullptr: none was under way.
  [[nodiscard]] DeviceSlot* finish();

 private:
  struct Present {
    DeviceSlot* slot = nullptr;
    ExpertLease host;
    std::vector<ExpertPiece> pieces;
    size_t next = 0;  // index of the next piece to enqueue
    std::deque<std::shared_ptr<kernels::Event>> under_way;
  };
  ExpertStore& host_;
  uint64_t piece_bytes_;
  std::unique_ptr<kernels::Queue> queue_;
  std::optional<Present> present_;
};

class DeviceCache {
 public:
  /// With some experts, copied from `host`.
  [[nodiscard]] static Result<std::unique_ptr<DeviceCache>> make(kernels::Device& device,
                                                                 const format::Checkpoint& checkpoint,
                                                                 ExpertStore& host, const DeviceCacheOptions& options);
  /// With all experts, read now. `progress` is told of the bytes that have reached the device; may be null.
  [[nodiscard]] static Result<std::unique_ptr<DeviceCache>> load(kernels::Device& device, Tier& tier,
                                                                 const DeviceExperts& experts,
                                                                 format::Progress* progress,
                                                                 const std::stop_token& stop);
  /// Device memory of `slots` slots and their window.
  [[nodiscard]] static uint64_t bytes_for(uint64_t expert_bytes, uint64_t slots) {
    return expert_bytes * (slots + kVramWindow);
  }
  /// Device memory of all experts; nothing is read. Errors: those of `load` that the catalogue reveals.
  [[nodiscard]] static Result<uint64_t> bytes_for_all(const format::Checkpoint& checkpoint,
                                                      const DeviceExperts& experts);
  ~DeviceCache();
  DeviceCache(const DeviceCache&) = delete;
  DeviceCache& operator=(const DeviceCache&) = delete;

  /// Whether it was loaded with all experts.
  [[nodiscard]] bool holds_all() const { return host_ == nullptr; }
  [[nodiscard]] bool holds(ExpertKey key) const { return cache_->find(key) != nullptr; }
  /// The experts whose slots are ready, in no order.
  [[nodiscard]] std::vector<ExpertKey> held() const { return cache_->held(); }

  void begin_pass(const ExpertPass& pass) { cache_->begin_pass(pass, std::chrono::steady_clock::now()); }
  void accept_drafts(uint32_t rows) { cache_->accept_drafts(rows); }
  /// Begins a layer. An expert that is still being copied ahead for it, and is not demanded, is given up.
  void begin_layer(LayerId layer, std::span<const ExpertDemand> demands);
  /// The slot of an expert that is here or being copied, counted as used; nullptr: it is missing.
  [[nodiscard]] DeviceSlot* use(LayerId layer, const ExpertDemand& demand);
  /// Pins the experts of the layer that are here completely, and returns their entries in table(layer), by number,
  /// kNoEntry for the others: for work that is enqueued before the host knows the layer's demands. Valid until `let_go`
  /// or the next `hold`. Empty: none is here.
  [[nodiscard]] std::span<const uint32_t> hold(LayerId layer);
  void let_go();
  /// Enqueues the copy of a missing expert. If it may be kept, a decode pass keeps it, evicting the policy's victim; a
  /// prefill keeps it only in an empty slot. Otherwise it goes to a slot of the window, until the next expert but one
  /// does.
  [[nodiscard]] DeviceSlot& move(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool may_keep);
  /// The CPU has computed a missing expert. With `promotes` it is copied ahead for the next use, unless other experts
  /// are being copied.
  void computed_by_host(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool promotes);

  /// Experts that the next layer is likely to want: those that the host has are copied ahead.
  void prefetch(LayerId layer, std::span<const ExpertId> experts);
  /// Enqueues pieces of the expert that is copied ahead: one expert at a time, at most kPiecesAhead pieces, and none
  /// while a demand is under way. Also enqueues pieces of an expert that goes back to the host, whatever else is under
  /// way. False: there is nothing to copy. If an expert is demanded before all of it is enqueued, the rest becomes a
  /// demand.
  bool advance();
  [[nodiscard]] bool is_prefetching() const { return cache_->is_prefetching(); }

  /// Ends the leases of copies that have run.
  void reap();
  /// Waits for the oldest copy, including one ahead of demand or back to the host. False: there is none.
  bool reap_oldest();
  /// When a copy of one more expert of the layer would end.
  [[nodiscard]] Eta copied_eta(LayerId layer) const;

  /// Precondition: the layer has experts here.
  [[nodiscard]] const kernels::ExpertTable& table(LayerId layer) const { return *pool_of(layer).table; }
  // 0: the layer has no experts here.
  [[nodiscard]] uint64_t expert_bytes(LayerId layer) const;
  /// Empty slots of the layer's pool, without those kept empty for demands.
  [[nodiscard]] uint64_t empty_slots(LayerId layer) const;

  /// Statistics, if some experts are kept.
  [[nodiscard]] VramStats stats() const;
  /// Misses of both phases.
  [[nodiscard]] MissCounts miss_counts() const;
  /// Statistics of loading all experts: bytes read, and the memory that they take.
  [[nodiscard]] const ExpertStoreStats& loading() const { return loading_; }

 private:
  struct Pool {
    ExpertLayout layout;
    std::unique_ptr<kernels::Buffer> memory;
    std::unique_ptr<kernels::ExpertTable> table;
    std::vector<DeviceSlot> window;  // the first entries of the table
    uint64_t turn = 0;               // next slot of the window, modulo its size
  };
  struct Copy {
    std::optional<ExpertLease> host;  // absent: more pieces of the expert follow
    std::shared_ptr<kernels::Event> begin, end;
    uint64_t bytes = 0;
    bool is_whole = false;  // all of an expert, not a piece
    bool is_ahead = false;  // no demand when it was enqueued
  };
  /// An expert copied ahead of demand, with pieces left to enqueue.
  struct Ahead {
    DeviceSlot* slot = nullptr;
    ExpertLease host;
    std::vector<ExpertPiece> pieces;
    size_t next = 0;  // index of the next piece
  };
  struct Sizes {
    std::vector<SlotLayout> layouts;
    std::vector<uint64_t> slots;  // per layout
    uint64_t window = 0;          // per layout
  };
  DeviceCache(kernels::Device& device, ExpertStore* host, uint32_t experts, uint64_t ahead_bytes)
      : host_(host), experts_(experts), ahead_bytes_(ahead_bytes), copies_(device.make_queue()) {}
  Result<void> allocate(kernels::Device& device, const std::map<LayerId, ExpertLayout>& layouts, const Sizes& sizes,
                        ExpertCache::Options options);
  /// Copies one expert while all are loaded, after waiting for the oldest copies if enough are under way.
  void load_one(LayerId layer, const ExpertDemand& demand, ExpertLease lease, format::Progress& progress);
  /// Waits for the oldest copy. False: none is under way.
  bool finish_oldest(format::Progress& progress);
  void keep_loading(const ExpertStoreStats& reading);
  [[nodiscard]] const Pool& pool_of(LayerId layer) const;
  [[nodiscard]] VramPhaseStats& counts() { return counts_[static_cast<size_t>(cache_->pass().phase)]; }
  /// Assigns a slot to the expert; nullptr: none is available.
  [[nodiscard]] DeviceSlot* insert(const ExpertUse& use, ExpertCache::Evict evict);
  void copy(const Pool& pool, DeviceSlot& slot, ExpertLease host);
  /// Makes the next copy to the slot wait for the work that reads the slot.
  void wait_for_work(DeviceSlot& slot);
  void start_ahead(const Pool& pool, DeviceSlot& slot, ExpertLease host);
  /// Starts to copy the next expected expert that the host has and the device lacks. False: none, or no slot for it.
  bool start_expected();
  /// Enqueues the next piece of ahead_. Precondition: there is one.
  void enqueue_piece(bool is_ahead);
  /// Enqueues all pieces left of ahead_.
  void finish_ahead();
  /// Gives up ahead_ and empties its slot.
  void drop_ahead();
  [[nodiscard]] size_t pieces_under_way() const;
  [[nodiscard]] bool has_demand_under_way() const { return pieces_under_way() < under_way_.size(); }
  void finish(const Copy& copy);
  /// Whether experts evicted from the pool go back to host memory.
  [[nodiscard]] bool sends_back(const ExpertCache::Pool& pool) const;
  /// Advances the copies back to the host. False: none is under way or due.
  bool advance_returns();
  /// Starts to send the next victim back to the host. False: none has to leave, or none can.
  bool begin_return();
  /// The slot's expert is in host memory now.
  void settle_return(DeviceSlot& slot);

  ExpertStore* host_;  // null: all experts are here
  uint32_t experts_;   // per layer
  uint64_t ahead_bytes_;
  std::vector<Pool> pools_;
  std::optional<ExpertCache> cache_;
  std::unique_ptr<kernels::Queue> copies_;
  std::deque<Copy> under_way_;  // oldest first
  std::optional<Ahead> ahead_;
  std::optional<ExpertReturns> returns_;
  std::vector<uint32_t> entries_;  // returned by `hold`
  std::vector<DeviceSlot*> held_;
  WorkRate link_;
  std::array<VramPhaseStats, kPhases> counts_{};  // by Phase; stats() adds the cache's counts
  ExpertStoreStats loading_;
};

}  // namespace dspack::runtime
