// The host's cache of experts: a fixed number of slots, into which all misses of a layer are read at once by the
// threads of a pool, each straight to its place. What later layers of the pass are known to want is read after that of
// the layer at work. What the next layer is expected to want is read while nothing is wanted at once. Both take no slot
// whose expert is near (expert_cache.h), and a guess that turns out wrong is given up: of its blocks, those that have
// not begun are not read. Threads: one thread asks and takes; the pool's threads read. Lifetime: borrows device and
// tier. Errors: see expert_store.h.
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
  std::set<LayerId> layers = {};  // whose experts will be asked for; empty: all
  std::optional<uint64_t> slots;  // absent: one for each expert
  uint64_t least_slots = 1;       // of each layout
  PolicyFactory policy;
  uint64_t seed = 1;
  PrefetchMode prefetch = PrefetchMode::off;
  std::optional<uint64_t> max_fetch = {};  // bytes of experts that are read for a prompt and its answer
  SlotMemory* memory = nullptr;            // of slots, borrowed; nullptr: the device's
  /// Files are mapped into the slots instead of read, so that no expert lies in memory twice. The device is the CPU's.
  bool in_place = false;
};

/// What a store has read so far, and what is on its way that the model wants.
struct ExpertReading {
  uint64_t experts = 0;
  std::array<uint64_t, 2> bytes{};  // by Medium
  uint64_t awaited = 0;             // experts
  Medium awaited_from{};            // of the last one of them
  FetchOutlook prompt;              // what the last prompt was expected to read

  void add(Medium medium, uint64_t read) {
    ++experts;
    bytes[static_cast<size_t>(medium)] += read;
  }
};

class StreamedStore final : public ExpertStore, private ExpertLease::Pin {
 public:
  /// Looks at the layout of every expert. Errors: those of plan_slot.
  [[nodiscard]] static Result<std::unique_ptr<StreamedStore>> make(kernels::Device& device, Tier& tier,
                                                                   const StreamedStoreOptions& options);
  /// Waits until what is to be kept in a cache on disk is there.
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
  /// By any thread.
  [[nodiscard]] ExpertReading reading() const {
    const std::lock_guard lock(mutex_);
    ExpertReading reading = reading_;
    reading.awaited = loading_[static_cast<size_t>(Urgency::demand)];
    return reading;
  }

  /// A prompt begins, from which on --max-fetch counts. What reading its experts is expected to take.
  [[nodiscard]] FetchOutlook begin_prompt(const PromptShape& prompt);
  [[nodiscard]] std::optional<uint64_t> max_fetch() const { return options_.max_fetch; }
  /// At which experts were read so far, in this run; nullopt: too few to tell.
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

  // All of these with the lock held.
  [[nodiscard]] Result<void> check_layer(ExpertKey key);
  [[nodiscard]] Slot* find(ExpertKey key) const;
  [[nodiscard]] Phase phase() const { return cache_->pass().phase; }
  [[nodiscard]] PhaseStats& counts() { return stats_.phases[static_cast<size_t>(phase())]; }
  [[nodiscard]] uint64_t& loading(Urgency urgency) { return loading_[static_cast<size_t>(urgency)]; }
  void count_hit(Slot& slot, const ExpertUse& use);
  /// With Urgency::prefetch: of an expert that a later layer of this pass will want.
  Result<Slot*> start_miss(const ExpertUse& use, Urgency urgency);
  [[nodiscard]] size_t window(LayerId layer) const;
  Result<void> begin_reading(Slot& slot, Urgency urgency);
  void unpin(Slot& slot);
  /// Nothing is read or kept: no slot becomes free by waiting.
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
  bool has_changed_ = false;             // guarded by mutex_, as all that follows: since the request last looked
  std::optional<ExpertCache> cache_;
  std::map<ExpertKey, SlotPlan> plans_;  // of experts that were read
  uint64_t keeping_ = 0;                 // experts on their way to the cache on disk
  std::optional<Error> keep_error_;
  Request* request_ = nullptr;  // the present one
  ExpertStoreStats stats_;
  std::array<uint64_t, kUrgencies> loading_{};  // experts, by the urgency of reading them
  FetchMeter meter_;
  ExpertReading reading_;                               // without what is awaited
  std::chrono::steady_clock::time_point last_release_;  // of a lease in this pass, or its beginning
  std::unique_ptr<TransferPool> transfers_;             // last: its threads use all of the above
};

}  // namespace dspack::runtime
