// An expert store within a fixed number of slots: experts stay until their slot is needed; all misses of a layer are
// read at once by the threads of a pool, each straight into its slot.
// Threads: one thread asks and takes; the pool's threads read. Lifetime: borrows device and storage. Errors: see
// expert_store.h.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/experts/expert_load.h"
#include "runtime/experts/expert_store.h"
#include "runtime/experts/fetch_outlook.h"
#include "runtime/experts/forecast.h"
#include "runtime/experts/pass_uses.h"
#include "runtime/experts/prefetch_governor.h"
#include "runtime/experts/slot_pool.h"
#include "runtime/experts/store_stats.h"

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
  SlotMemory memory = {};                  // of slots; empty: the device's
};

class StreamedStore final : public ExpertStore, private ExpertLease::Pin {
 public:
  /// Looks at the layout of every expert. Errors: those of plan_slot.
  [[nodiscard]] static Result<std::unique_ptr<StreamedStore>> make(kernels::Device& device, WeightStorage& storage,
                                                                   const StreamedStoreOptions& options);
  /// Waits until what is to be kept in a cache is there.
  ~StreamedStore() override;

  void begin_pass(const ExpertPass& pass) override;
  [[nodiscard]] const ExpertPass& pass() const override { return uses_.pass(); }
  void accept_drafts(uint32_t rows) override;
  [[nodiscard]] MissCounts miss_counts() const override;
  [[nodiscard]] Result<std::unique_ptr<ExpertRequest>> request(LayerId layer,
                                                               std::vector<ExpertDemand> demands) override;
  [[nodiscard]] bool wants_forecast() const override;
  /// Reads what is missing of them while nothing is wanted at once.
  void expect(LayerId layer, std::span<const ExpertId> experts) override;

  [[nodiscard]] const format::Checkpoint& checkpoint() const { return storage_.checkpoint(); }

  // For a store above this one, which holds copies of experts in faster memory.

  /// Whether there is such a copy: then the expert is the first to leave its slot here. Of one that has no slot:
  /// nothing.
  void set_copied(ExpertKey key, bool is_copied);
  /// An expert that is in a slot, without being counted or waited for; nullopt: it is not there.
  [[nodiscard]] std::optional<ExpertLease> lease_if_ready(ExpertKey key);

  /// A prompt begins, from which on --max-fetch counts. What reading its experts is expected to take.
  [[nodiscard]] FetchOutlook begin_prompt(const PromptShape& prompt);
  [[nodiscard]] std::optional<uint64_t> max_fetch() const { return options_.max_fetch; }
  /// At which experts were read so far, in this run; nullopt: too few to tell.
  [[nodiscard]] std::optional<double> bytes_per_second() const;

  [[nodiscard]] ExpertStoreStats stats() const;

 private:
  class Request;
  friend class Request;

  StreamedStore(kernels::Device& device, WeightStorage& storage, const StreamedStoreOptions& options);
  Result<void> make_pools();

  // All of these with the lock held.
  [[nodiscard]] Result<SlotPool*> pool_of(ExpertKey key);
  [[nodiscard]] PhaseStats& counts() { return stats_.phases[static_cast<size_t>(phase())]; }
  [[nodiscard]] PhaseStats& prefetch_counts() { return stats_.phases[static_cast<size_t>(Phase::decode)]; }
  [[nodiscard]] uint64_t& loading(Urgency urgency) { return loading_[static_cast<size_t>(urgency)]; }
  [[nodiscard]] Phase phase() const { return uses_.pass().phase; }
  void count_hit(Slot& slot, const ExpertUse& use);
  void count_eviction(const Slot& slot);
  Result<Slot*> start_miss(const ExpertUse& use);
  [[nodiscard]] size_t prefill_window(LayerId layer) const;
  Result<void> begin_reading(Slot& slot, Urgency urgency);
  Result<void> count_reading(const Slot& slot);
  void count_read(const Slot& slot, uint64_t bytes);
  void unpin(Slot& slot);
  [[nodiscard]] bool is_idle() const;  // nothing is read or kept: no slot becomes free by waiting
  [[nodiscard]] bool is_prefetching() const;
  void start_prefetches();
  bool start_prefetch(ExpertKey key);
  void end_pass();

  void end_forecast(LayerId layer, std::span<const ExpertDemand> demands);  // takes the lock
  void loaded(Slot& slot, const LoadOutcome& outcome);                      // on the pool's threads
  bool read_again(Slot& slot, const LoadOutcome& outcome);                  // with the lock held
  void settle(Slot& slot, const LoadOutcome& outcome);                      // with the lock held
  void start_keeping(Slot& slot);
  void release(uint64_t slot) override;

  kernels::Device& device_;
  WeightStorage& storage_;
  StreamedStoreOptions options_;
  PassUses uses_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;           // a slot has become ready, failed or free
  bool has_changed_ = false;                      // guarded by mutex_: since the request last looked
  std::vector<std::unique_ptr<SlotPool>> pools_;  // guarded by mutex_, as all that follows
  std::map<LayerId, SlotPool*> pool_of_layer_;
  std::vector<Slot*> slots_;  // by number
  uint64_t keeping_ = 0;      // experts on their way to the cache
  std::optional<Error> keep_error_;
  Request* request_ = nullptr;  // the present one
  ExpertStoreStats stats_;
  std::array<uint64_t, kUrgencies> loading_{};  // experts, by the urgency of reading them
  uint64_t fetched_ = 0;                        // bytes since the prompt began
  struct Reading {
    std::chrono::steady_clock::time_point start;
    uint64_t experts = 0;  // on their way
    uint64_t bytes = 0;    // read in all
    double seconds = 0;    // in which any was read
  } reading_;
  Forecast forecast_;
  PrefetchGovernor governor_;
  bool has_evicted_ = false;
  struct PassCourse {
    std::chrono::steady_clock::time_point start, end;
    uint64_t layers = 0;
    PhaseStats before;                       // of decode passes
  } course_;                                 // of the present pass
  std::unique_ptr<TransferPool> transfers_;  // last: its threads use all of the above
};

}  // namespace dspack::runtime
