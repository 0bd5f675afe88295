// Runs routed experts of a device whose memory holds some of them: reads back what the router has picked, computes what
// is there at once, copies what is not from the host's memory while that runs, or lets the CPU compute it where it lies
// (miss_choice.h), and adds the results up in the router's order. What the host lacks is read meanwhile, straight into
// the memory that copies start from.
// The host enqueues and does not wait for the device, but for the routes of the next layer; then everything of this one
// has run. A prefill goes the same way, but copies everything and keeps nothing that has to push something out: two
// experts pass through a window, one computed while the other is copied.
// In what way an expert was computed shows in a result only if the CPU did it: its sums have another order.
// Threads: single-thread. Lifetime: borrows devices, queue and host store. Errors: those of the store; cancelled.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "runtime/experts/decode_bound.h"
#include "runtime/experts/grouped_executor.h"
#include "runtime/experts/vram/host_experts.h"
#include "runtime/experts/vram/tiered_store.h"
#include "runtime/experts/vram/vram_tier.h"

namespace dspack::runtime {

class TieredExecutor final : public ExpertExecutor {
 public:
  struct Parts {
    kernels::Device& device;
    kernels::Queue& queue;  // of the device
    kernels::Device& host;  // the CPU's
    StreamedStore& store;   // in the host's memory, pinned for the device
  };
  [[nodiscard]] static Result<std::unique_ptr<TieredExecutor>> make(const Parts& parts, const ExecutorShape& shape,
                                                                    const VramTierOptions& tier,
                                                                    const MissOptions& miss);
  ~TieredExecutor() override;
  TieredExecutor(const TieredExecutor&) = delete;
  TieredExecutor& operator=(const TieredExecutor&) = delete;

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override;
  [[nodiscard]] MissCounts miss_counts() const override;
  [[nodiscard]] Result<void> run(const RoutedTokens& tokens, const kernels::Rows& y,
                                 const std::stop_token& stop) override;
  [[nodiscard]] bool wants_forecast() const override;
  void expect(LayerId layer, std::span<const ExpertId> experts) override;

  /// See GroupedExecutor.
  void set_recorder(RouteRecorder* recorder) { recorder_ = recorder; }
  [[nodiscard]] const DecodeBound& decode_bound() const;
  /// Of the store, with those of the tier above it.
  [[nodiscard]] ExpertStoreStats stats() const;
  [[nodiscard]] uint64_t scratch_bytes() const { return scratch_->size_bytes(); }

  /// Memory of the device for activations of so many tokens at once.
  [[nodiscard]] static uint64_t scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape);
  /// Memory of the host beside the store's slots.
  [[nodiscard]] static uint64_t host_bytes_for(const kernels::Device& host, const ExecutorShape& shape);

 private:
  /// The assignments of one expert within a wave.
  struct Group {
    ExpertDemand demand;
    std::vector<uint32_t> parts;  // token * top_k + slot
  };
  struct Wave {
    RoutedTokens tokens;
    uint32_t first_row = 0;  // within the pass
    kernels::Rows parts;     // [tokens * top_k, hidden], on the device
  };
  /// When things of a layer happened; times are known once the queue has run.
  struct Course {
    /// A missing expert that the device computed; `arrival` is null where it was under way before.
    struct Miss {
      std::shared_ptr<kernels::Event> arrival, begin, end;
    };
    Phase phase = Phase::decode;
    std::shared_ptr<kernels::Event> start, hits, end;
    std::shared_ptr<kernels::Event> other_begin, other_end;  // the layer's other work; null: there was none
    std::vector<Miss> misses;
    double host_seconds = 0;   // that the CPU computed, in all
    double last_on_host = 0;   // of these: the expert that came last of all; 0: the device computed that one
    double host_transfer = 0;  // until the last missing expert was in the host's memory
  };
  /// An expert in the host's memory that the CPU will compute.
  struct HostWork {
    size_t group = 0;
    ExpertLease lease;
  };
  /// What a layer still lacks.
  struct Missing {
    std::vector<size_t> groups;              // without a slot
    std::unique_ptr<ExpertRequest> request;  // of them; null: none is missing
    size_t taken = 0;
    uint64_t fills = 0;  // of them, by place in `groups`, those for which the cache has an empty slot
    std::vector<std::pair<size_t, VramSlot*>> under_way;  // to the cache's slots, and not yet enqueued to be computed
    std::deque<HostWork> for_host;
    double host_seconds = 0;  // that those are expected to take
  };

  TieredExecutor(const Parts& parts, const ExecutorShape& shape, const MissOptions& miss);
  [[nodiscard]] static kernels::ExpertsShape device_shape(const ExecutorShape& shape);
  [[nodiscard]] Result<void> run_waves(const RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop);
  [[nodiscard]] Result<void> run_wave(const Wave& wave, const kernels::Rows& y, const std::stop_token& stop);
  [[nodiscard]] Result<std::vector<uint32_t>> chosen_experts(const RoutedTokens& tokens, bool with_input);
  [[nodiscard]] std::vector<Group> group_by_expert(const Wave& wave, std::span<const uint32_t> chosen) const;
  [[nodiscard]] Result<Missing> compute_hits(const Wave& wave, std::span<const Group> groups, Course& course);
  [[nodiscard]] Result<void> compute_missing(const Wave& wave, std::span<const Group> groups, Missing& missing,
                                             Course& course, const std::stop_token& stop);
  [[nodiscard]] Result<void> assign_next(const Wave& wave, std::span<const Group> groups, Missing& missing,
                                         Course& course, const std::stop_token& stop);
  void do_other_work(const Wave& wave, Course& course);
  void compute_under_way(const Wave& wave, std::span<const Group> groups, Missing& missing, Course& course);
  void compute_on_host(const Wave& wave, std::span<const Group> groups, Missing& missing, Course& course);
  void run_parts(const Wave& wave, std::span<const kernels::ExpertGroup> groups);
  void run_in_slot(const Wave& wave, const Group& group, VramSlot& slot, Course& course);
  /// Adds up the times of layers whose work has run.
  void settle() const;
  [[nodiscard]] bool may_compute() const;
  /// `place`: in Missing::groups.
  [[nodiscard]] MissWay way_of(LayerId layer, const Missing& missing, size_t place, uint32_t rows) const;
  [[nodiscard]] Result<GroupedExecutor*> one_by_one();

  Parts parts_;
  ExecutorShape shape_;
  MissOptions miss_;
  RouteRecorder* recorder_ = nullptr;
  ExpertPass pass_;
  std::unique_ptr<kernels::Buffer> scratch_;  // of the kernels, then parts
  uint64_t parts_at_ = 0;
  std::unique_ptr<HostExperts> host_;
  std::unique_ptr<VramTier> tier_;
  std::unique_ptr<TieredStore> slots_;        // for who listens to single experts
  std::unique_ptr<GroupedExecutor> grouped_;  // likewise, made when it is first wanted
  // Looking at times does not change what is computed.
  mutable std::deque<Course> courses_;  // that have not been settled
  mutable DecodeBound decode_bound_;
};

}  // namespace dspack::runtime
