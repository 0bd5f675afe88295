// The executor of a run's routed experts. For each wave of tokens it reads back the routes, while a device already
// computes the chosen experts that it holds; groups them by expert; lets each backend compute what it has; gives each
// missing expert to the backend that would finish it first (schedule.h); and sums the results in the router's order. So
// where and when an expert is computed changes no sum, except that the bits of the CPU beside a device differ from the
// device's. Streamed: the CPU computes in slots of host memory. Tiered: one or more devices hold some experts, host
// memory others. Resident: the device holds all; nothing is read back, and a pass can be recorded. Scratch memory is
// fixed at construction: longer inputs run in waves of tokens, which changes no result, since every row is computed by
// itself. Threads: single-thread. Lifetime: borrows devices, queue, tier or store. Errors: those of the store; of
// loading (device_cache.h); of the recorder; budget; cancelled.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "runtime/experts/backend.h"
#include "runtime/experts/device_cache.h"
#include "runtime/experts/executor.h"
#include "runtime/experts/expert_homes.h"
#include "runtime/experts/expert_tracer.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

enum class ExpertPlacement { streamed, resident, tiered };

/// Which experts are in which memory; one that is in both a device's and the host's is in both lists.
struct ExpertResidence {
  std::vector<ExpertKey> device, host;
  bool is_resident = false;  // all experts are in the device's memory; the lists are empty
};

class RoutedExperts final : public ExpertExecutor {
 public:
  /// The devices that compute.
  struct Target {
    kernels::Device& device;
    kernels::Queue& queue;            // on `device`
    kernels::Device* host = nullptr;  // the CPU; required for tiered experts
    /// Tiered: devices that only compute experts, with the slots of each.
    struct Further {
      kernels::Device* device = nullptr;
      uint64_t vram_slots = 0;
    };
    std::vector<Further> further = {};
  };
  struct Options {
    ExpertPlacement placement = ExpertPlacement::streamed;
    /// Resident experts use its shape and layers; without layers nothing is loaded.
    StreamedStoreOptions store;
    ExecutorShape shape;
    uint64_t vram_slots = 0;               // tiered: on the first device
    MissOptions miss = {};                 // tiered
    bool fills_devices = false;            // tiered, with room for all experts: read and copy them all first
    format::Progress* progress = nullptr;  // reports loading all experts; may be null
  };
  /// Makes its own store over `tier`, or loads all experts from there.
  [[nodiscard]] static Result<std::unique_ptr<RoutedExperts>> make(const Target& target, Tier& tier,
                                                                   const Options& options, const std::stop_token& stop);
  /// Streamed, from the caller's store.
  [[nodiscard]] static Result<std::unique_ptr<RoutedExperts>> stream(const Target& target, ExpertStore& store,
                                                                     const ExecutorShape& shape);
  /// Tiered, over the caller's store, whose memory is pinned for the device.
  [[nodiscard]] static Result<std::unique_ptr<RoutedExperts>> make_tiered(
      const Target& target, const format::Checkpoint& checkpoint, ExpertStore& store, const ExecutorShape& shape,
      const DeviceCacheOptions& cache, const MissOptions& miss);
  ~RoutedExperts() override;
  RoutedExperts(const RoutedExperts&) = delete;
  RoutedExperts& operator=(const RoutedExperts&) = delete;

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override;
  [[nodiscard]] MissCounts miss_counts() const override;
  [[nodiscard]] Result<void> run(const RoutedTokens& tokens, const kernels::Rows& y,
                                 const std::stop_token& stop) override;
  [[nodiscard]] bool can_record() const override { return is_resident() && hearing_.empty(); }
  // The host times each stage by itself, and has nothing to gain.
  [[nodiscard]] bool takes_rest() const override { return is_resident() && !target_.device.is_host(); }
  [[nodiscard]] bool wants_forecast() const override;
  void announce(LayerId layer, std::span<const uint32_t> ids) override;
  void expect(LayerId layer, ExpertForecast forecast) override;
  /// A forecast that the host already knows.
  void expect(LayerId layer, std::span<const ExpertId> experts);

  /// Reports the routers' picks to a listener, which is borrowed, from the next pass on, after each layer is enqueued.
  /// `run` also fails if a listener does.
  void add_listener(RouteListener& listener) { listeners_.push_back(&listener); }
  /// The executor's own store; nullptr: it has none.
  [[nodiscard]] StreamedStore* store() { return own_store_.get(); }
  [[nodiscard]] std::span<const std::unique_ptr<ExpertBackend>> backends() const { return backends_; }
  [[nodiscard]] ExpertStoreStats stats() const;
  /// Which experts are in memory now.
  [[nodiscard]] ExpertResidence places() const;
  /// Sums over all decode passes. Empty for resident experts: no transfer bounds them.
  [[nodiscard]] const DecodeBound& decode_bound() const;
  [[nodiscard]] uint64_t scratch_bytes() const;

  /// Device memory for activations, without those of a trace.
  [[nodiscard]] static uint64_t scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape,
                                                  ExpertPlacement placement);
  /// Host memory that tiered experts need beyond the store's slots, with `further` further devices.
  [[nodiscard]] static uint64_t host_bytes_for(const kernels::Device& host, const ExecutorShape& shape,
                                               size_t further = 0);

 private:
  RoutedExperts(Target target, const ExecutorShape& shape) : target_(std::move(target)), shape_(shape) {}
  Result<void> allocate(ExpertPlacement placement);
  [[nodiscard]] bool is_resident() const { return cache_ != nullptr && cache_->holds_all(); }
  [[nodiscard]] Result<void> begin_trace(const RoutedTokens& tokens);
  [[nodiscard]] Result<void> run_resident(const RoutedTokens& tokens, const kernels::Rows& y,
                                          const std::stop_token& stop);
  [[nodiscard]] Result<void> run_waves(const RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop);
  [[nodiscard]] Result<void> run_wave(const RoutedTokens& tokens, uint32_t first_row, const kernels::Rows& y,
                                      const std::stop_token& stop);
  /// Reads back the router's picks, once per wave: the only place in a pass where the host waits for the device. Calls
  /// `meanwhile` before waiting, with an event after which the picks can be read.
  [[nodiscard]] Result<std::vector<uint32_t>> chosen_experts(
      const RoutedTokens& tokens, const std::function<void(std::shared_ptr<kernels::Event>)>& meanwhile = {});
  [[nodiscard]] Result<void> compute(const ExpertWave& wave, const std::function<void()>& meanwhile,
                                     const std::stop_token& stop);
  /// Gives the next missing expert that arrives to a backend.
  [[nodiscard]] Result<void> assign_next(const ExpertWave& wave, std::span<const size_t> missing,
                                         ExpertRequest& request, const std::stop_token& stop);
  /// Passes on the awaited forecast once the device has computed it.
  void take_forecast();
  /// Lets backends advance background copies; false: nothing is left to copy.
  bool advance();
  [[nodiscard]] bool compute_next(const ExpertWave& wave);
  /// Adds up the times of layers whose work has run.
  void settle() const;

  Target target_;
  ExecutorShape shape_;
  std::vector<RouteListener*> listeners_;
  std::vector<RouteListener*> hearing_;  // those that want the routes of this pass
  std::vector<uint32_t> heard_;          // the present layer's routes, for the listeners
  ExpertPass pass_;
  std::array<uint64_t, kPhases> passes_{};  // by Phase
  std::unique_ptr<SlotMemory> pinned_;      // slots of own_store_, if a device copies from them
  std::unique_ptr<StreamedStore> own_store_;
  ExpertStore* store_ = nullptr;              // null: all experts are resident
  std::unique_ptr<kernels::Buffer> scratch_;  // kernel scratch, then parts
  uint64_t parts_at_ = 0;
  std::unique_ptr<kernels::Buffer> routes_;  // a wave's routes: the device writes, the host reads
  struct Awaited {
    LayerId layer;
    ExpertForecast forecast;
  };
  std::optional<Awaited> awaited_;
  ExpertHomes homes_;
  std::unique_ptr<DeviceCache> cache_;                    // on target_.device; null: the CPU computes alone
  std::vector<std::unique_ptr<ExpertBackend>> backends_;  // target_.device's, further devices', the CPU's beside them
  std::unique_ptr<ExpertTracer> tracer_;                  // made for the first trace, like traced_parts_
  std::unique_ptr<kernels::Buffer> traced_parts_;         // if scratch_ has no parts
  // Mutable: reading times changes no result.
  mutable std::deque<LayerCourse> courses_;  // not settled yet
  mutable DecodeBound decode_bound_;
  mutable std::array<double, kPhases> waiting_{};  // seconds, by Phase, that a device waited for experts
};

}  // namespace dspack::runtime
