// The routed experts of a run, and the executor of all their computing: routes are read back, while a device computes
// those of its experts that it finds chosen; they are grouped by expert, each backend computes what it has, each
// missing expert goes to the backend that would finish it first (schedule.h), and the results are added up in the
// router's order. So place and time of computing an expert change no sum, except that the bits of the CPU beside a
// device differ from the device's. Streamed: the CPU computes in slots of the host's memory. Tiered: one or several
// devices have some experts, the host's memory others. Resident: the device has all; then nothing is read back, and a
// pass can be recorded. Scratch memory is fixed when this is made: longer inputs go in waves of tokens, which changes
// no result, since every row is computed by itself. Threads: single-thread. Lifetime: borrows devices, queue, tier or
// store. Errors: those of the store; of loading (device_cache.h); of the recorder; budget; cancelled.
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

/// Of experts in memory, which one lies where; one that is in both a device's and the host's is in both lists.
struct ExpertResidence {
  std::vector<ExpertKey> device, host;
  bool is_resident = false;  // all experts are in the device's memory, and listed nowhere
};

class RoutedExperts final : public ExpertExecutor {
 public:
  /// The devices that compute.
  struct Target {
    kernels::Device& device;
    kernels::Queue& queue;            // of the device
    kernels::Device* host = nullptr;  // the CPU's; for tiered experts
    /// Devices that compute experts and nothing else, for tiered ones, with the slots of each.
    struct Further {
      kernels::Device* device = nullptr;
      uint64_t vram_slots = 0;
    };
    std::vector<Further> further = {};
  };
  struct Options {
    ExpertPlacement placement = ExpertPlacement::streamed;
    /// Resident experts have its shape and layers; none without a layer.
    StreamedStoreOptions store;
    ExecutorShape shape;
    uint64_t vram_slots = 0;               // of tiered ones, on the first device
    MissOptions miss = {};                 // likewise
    bool fills_devices = false;            // tiered ones have room for all, which are read and copied first
    format::Progress* progress = nullptr;  // of loading all experts; nullptr: not wanted
  };
  /// With a store of its own over `tier`, or all experts loaded from there.
  [[nodiscard]] static Result<std::unique_ptr<RoutedExperts>> make(const Target& target, Tier& tier,
                                                                   const Options& options, const std::stop_token& stop);
  /// Streamed from a store of the caller's.
  [[nodiscard]] static Result<std::unique_ptr<RoutedExperts>> stream(const Target& target, ExpertStore& store,
                                                                     const ExecutorShape& shape);
  /// Tiered over such a store, which is pinned for the device.
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
  // The host looks at what each of its stages takes, and has nothing to gain.
  [[nodiscard]] bool takes_rest() const override { return is_resident() && !target_.device.is_host(); }
  [[nodiscard]] bool wants_forecast() const override;
  void announce(LayerId layer, std::span<const uint32_t> ids) override;
  void expect(LayerId layer, ExpertForecast forecast) override;
  /// What is known already.
  void expect(LayerId layer, std::span<const ExpertId> experts);

  /// Hears what the routers pick from the next pass on, when a layer has been enqueued; borrowed. `run` also fails
  /// where a listener does.
  void add_listener(RouteListener& listener) { listeners_.push_back(&listener); }
  /// The store of its own; nullptr: there is none.
  [[nodiscard]] StreamedStore* store() { return own_store_.get(); }
  [[nodiscard]] std::span<const std::unique_ptr<ExpertBackend>> backends() const { return backends_; }
  [[nodiscard]] ExpertStoreStats stats() const;
  /// Which experts are in memory now.
  [[nodiscard]] ExpertResidence places() const;
  /// Of all decode passes. Of resident experts nothing: no transfer bounds them.
  [[nodiscard]] const DecodeBound& decode_bound() const;
  [[nodiscard]] uint64_t scratch_bytes() const;

  /// Memory of the device for activations, without those of a trace.
  [[nodiscard]] static uint64_t scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape,
                                                  ExpertPlacement placement);
  /// Memory of the host that tiered experts take beside the store's slots, with so many further devices.
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
  /// Reads back what the router has picked: the one place where the host waits for the device. Once a wave. `meanwhile`
  /// is called before it waits, with what is reached when the device knows it.
  [[nodiscard]] Result<std::vector<uint32_t>> chosen_experts(
      const RoutedTokens& tokens, const std::function<void(std::shared_ptr<kernels::Event>)>& meanwhile = {});
  [[nodiscard]] Result<void> compute(const ExpertWave& wave, const std::function<void()>& meanwhile,
                                     const std::stop_token& stop);
  /// The next missing expert goes to a backend.
  [[nodiscard]] Result<void> assign_next(const ExpertWave& wave, std::span<const size_t> missing,
                                         ExpertRequest& request, const std::stop_token& stop);
  /// Takes up a forecast that has come true to the host.
  void take_forecast();
  /// Lets backends move what nobody waits for; false: nothing is left to move.
  bool advance();
  [[nodiscard]] bool compute_next(const ExpertWave& wave);
  /// Adds up the times of layers whose work has run.
  void settle() const;

  Target target_;
  ExecutorShape shape_;
  std::vector<RouteListener*> listeners_;
  std::vector<RouteListener*> hearing_;  // those that want the routes of this pass
  std::vector<uint32_t> heard_;          // what is to be told of the present layer
  ExpertPass pass_;
  std::array<uint64_t, kPhases> passes_{};  // by Phase
  std::unique_ptr<SlotMemory> pinned_;      // of own_store_, where a device copies from it
  std::unique_ptr<StreamedStore> own_store_;
  ExpertStore* store_ = nullptr;              // null: all experts are resident
  std::unique_ptr<kernels::Buffer> scratch_;  // of the kernels, then parts
  uint64_t parts_at_ = 0;
  std::unique_ptr<kernels::Buffer> routes_;  // of a wave, where the host sees what the device writes
  struct Awaited {
    LayerId layer;
    ExpertForecast forecast;
  };
  std::optional<Awaited> awaited_;
  ExpertHomes homes_;
  std::unique_ptr<DeviceCache> cache_;                    // of target_.device; null: the CPU computes alone
  std::vector<std::unique_ptr<ExpertBackend>> backends_;  // target_.device's, further devices', the CPU's beside them
  std::unique_ptr<ExpertTracer> tracer_;                  // made for the first trace, as is the next
  std::unique_ptr<kernels::Buffer> traced_parts_;         // where scratch_ has none
  // Looking at times does not change what is computed.
  mutable std::deque<LayerCourse> courses_;  // that have not been settled
  mutable DecodeBound decode_bound_;
  mutable std::array<double, kPhases> waiting_{};  // seconds, by Phase, that a device waited for experts
};

}  // namespace dspack::runtime
