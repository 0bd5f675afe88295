// The host's cache of experts: a fixed number of slots. All misses of a layer are read at once by a pool of threads,
// each straight into its slot. Experts that later layers of the pass are known to want are read after those of the
// current layer; experts that the next layer is expected to want are read while no demand is. Neither evicts an expert
// that is near (expert_cache.h), and a guess that turns out wrong is given up: its blocks that have not begun are not
// read. Threads: one thread requests and takes; the pool's threads read. Lifetime: borrows device and tier. Errors: see
// expert_store.h.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/experts/expert_cache.h"
#include "runtime/experts/expert_load.h"
#include "runtime/experts/fetch_outlook.h"

namespace dspack::runtime {

struct StreamedStoreOptions {
  ExpertShape shape;
  std::set<LayerId> layers = {};  // whose experts will be requested; empty: all
  std::optional<uint64_t> slots;  // absent: one per expert
  uint64_t least_slots = 1;       // per layout
  PolicyFactory policy;
  PrefetchMode prefetch = PrefetchMode::off;
  std::optional<uint64_t> max_fetch = {};  // limit on experts read for a prompt and its answer
  SlotMemory* memory = nullptr;            // source of slot memory, borrowed; nullptr: the device
  /// Map files into the slots instead of reading them, so that no expert is in memory twice. The device must be the
  /// CPU's.
  bool in_place = false;
};

/// A store's reads so far, and the reads that the model waits for.
struct ExpertReading {
  uint64_t experts = 0;
  std::array<uint64_t, 2> bytes{};  // by Medium
  uint64_t awaited = 0;             // experts that are being read on demand
  Medium awaited_from{};            // where the last of these comes from
  FetchOutlook prompt;              // the expected reads of the last prompt

  void add(Medium medium, uint64_t read) {
    ++experts;
    bytes[static_cast<size_t>(medium)] += read;
  }
};

class StreamedStore final : public ExpertStore, private ExpertLease::Pin {
 public:
  /// Checks the layout of every expert. Errors: those of plan_slot.
  [[nodiscard]] static Result<std::unique_ptr<StreamedStore>> make(kernels::Device& device, Tier& tier,
                                                                   const StreamedStoreOptions& options);
  /// Waits until experts to be kept in a cache on disk are written.
  ~StreamedStore() override;

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override;
  [[nodiscard]] MissCounts miss_counts() const override;
  [[nodiscard]] Result<std::unique_ptr<ExpertRequest>> request(LayerId layer,
                                                               std::vector<ExpertDemand> demands) override;
  [[nodiscard]] bool wants_forecast() const override {
    const std::lock_guard lock(mutex_);
    return cache_->is_prefetching();
  }
  void announce(LayerId layer, std::span<const ExpertDemand> demands) override;
  void expect(LayerId layer, std::span<const ExpertId> experts) override;
  void set_copied(ExpertKey key, bool is_copied) override;
  [[nodiscard]] std::optional<ExpertLease> lease_if_ready(ExpertKey key) override;
  void used_elsewhere(LayerId layer, const ExpertDemand& demand) override;
  [[nodiscard]] std::optional<ExpertLease> take_back(ExpertKey key) override;
  void settle_return(ExpertKey key, bool is_there) override;
  [[nodiscard]] ExpertStoreStats stats() const override;
  [[nodiscard]] std::vector<ExpertKey> held() const override {
    const std::lock_guard lock(mutex_);
    return cache_->held();
  }
  /// Callable from any thread.
  [[nodiscard]] ExpertReading reading() const {
    const std::lock_guard lock(mutex_);
    ExpertReading reading = reading_;
    reading.awaited = loading_[static_cast<size_t>(Urgency::demand)];
    return reading;
  }

  /// Begins a prompt, from which on --max-fetch counts. Returns the expected reads of its experts.
  [[nodiscard]] FetchOutlook begin_prompt(const PromptShape& prompt);
  [[nodiscard]] std::optional<uint64_t> max_fetch() const { return options_.max_fetch; }
  /// The rate at which experts were read in this run; nullopt: too few were to tell.
  [[nodiscard]] std::optional<double> bytes_per_second() const {
    const std::lock_guard lock(mutex_);
    return meter_.bytes_per_second();
  }

 private:
  struct Slot;
  class Request;
  friend class Request;

  StreamedStore(kernels::Device& device, Tier& tier, const StreamedStoreOptions& options)
      : device_(device), tier_(tier), options_(options), meter_(options.max_fetch) {}
  Result<void> make_cache();
  [[nodiscard]] Result<std::unique_ptr<CacheSlot>> make_slot(size_t index, uint64_t place);

  // Called with the lock held.
  [[nodiscard]] Result<void> check_layer(ExpertKey key);
  [[nodiscard]] Slot* find(ExpertKey key) const;
  [[nodiscard]] Phase phase() const { return cache_->pass().phase; }
  [[nodiscard]] PhaseStats& counts() { return stats_.phases[static_cast<size_t>(phase())]; }
  [[nodiscard]] uint64_t& loading(Urgency urgency) { return loading_[static_cast<size_t>(urgency)]; }
  void count_hit(Slot& slot, const ExpertUse& use);
  /// nullptr: no slot is available. Urgency::prefetch: a later layer of this pass will want the expert.
  Result<Slot*> start_miss(const ExpertUse& use, Urgency urgency);
  [[nodiscard]] size_t window(LayerId layer) const;
  Result<void> begin_reading(Slot& slot, Urgency urgency);
  void unpin(Slot& slot);
  /// Nothing is being read or kept, so that waiting frees no slot.
  [[nodiscard]] bool is_idle() const { return keeping_ == 0 && std::ranges::count(loading_, 0U) == kUrgencies; }
  void start_prefetches();
  bool start_announced();
  bool start_prefetch(ExpertKey key);
  bool read_again(Slot& slot, const LoadOutcome& outcome);
  void settle(Slot& slot, const LoadOutcome& outcome);
  void start_keeping(Slot& slot);

  void loaded(Slot& slot, const LoadOutcome& outcome);  // on the pool's threads, takes the lock
  void release(uint64_t slot) override;

  kernels::Device& device_;
  Tier& tier_;
  StreamedStoreOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;  // a slot has become ready, failed or free
  bool has_changed_ = false;             // since the request last looked; guarded by mutex_, as is all that follows
  std::optional<ExpertCache> cache_;
  std::map<ExpertKey, SlotPlan> plans_;  // plans of the experts read so far
  uint64_t keeping_ = 0;                 // experts being written to the cache on disk
  std::optional<Error> keep_error_;
  Request* request_ = nullptr;  // the present one; null: none
  ExpertStoreStats stats_;
  std::array<uint64_t, kUrgencies> loading_{};  // experts being read, by urgency
  FetchMeter meter_;
  ExpertReading reading_;                               // without `awaited`
  std::chrono::steady_clock::time_point last_release_;  // last release of a lease in this pass, or its start
  std::unique_ptr<TransferPool> transfers_;             // last: its threads use all of the above
};

}  // namespace dspack::runtime
