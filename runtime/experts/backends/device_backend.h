// Computes experts on a device, in the slots of its memory. Present experts go into one launch; for few tokens the
// device selects them itself, before the host knows the routes. Missing experts are launched in groups as their copies
// from host memory arrive. The host enqueues and does not wait.
// Threads: single-thread. Lifetime: borrows queue and cache. Errors: none.
#pragma once

#include <optional>
#include <utility>

#include "runtime/experts/backend.h"
#include "runtime/experts/device_cache.h"
#include "runtime/experts/expert_homes.h"

namespace dspack::runtime {

class DeviceBackend final : public ExpertBackend {
 public:
  /// The experts that belong to the device, if there are several devices.
  struct Share {
    const ExpertHomes* homes = nullptr;  // borrowed; null: all belong to it
    size_t number = 0;                   // the device's index

    /// Options for its cache with `slots` slots: one with room for all of its experts sends nothing back.
    [[nodiscard]] DeviceCacheOptions own(const DeviceCacheOptions& of_all, uint64_t slots) const;
  };
  /// `queue` computes; `scratch`: see kernels::ExpertPartsArgs.
  DeviceBackend(kernels::Queue& queue, kernels::Slice scratch, DeviceCache& cache, const MissOptions& miss,
                const Share& share)
      : queue_(queue), scratch_(scratch), cache_(cache), miss_(miss), share_(share) {}

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override { cache_.accept_drafts(rows); }
  void compute_held(const ExpertWave& wave, const RouteIds& ids) override;
  /// Whether compute_held has enqueued work that begin_wave has not taken into account yet.
  [[nodiscard]] bool has_held() const { return held_.has_value(); }
  void begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) override;
  /// Traced experts go to the first device.
  [[nodiscard]] bool may_take(const ExpertWave& wave, size_t group) const override;
  /// Empty slots are filled in any case, in the order of the experts and not of their arrival: with `--dev
  /// miss=compute` the choice of the backend must not depend on a disk.
  [[nodiscard]] Eta eta(const ExpertWave& wave, size_t group) override;
  void take(const ExpertWave& wave, size_t group, ExpertLease lease) override;
  void enqueue_taken(const ExpertWave& wave) override;
  void offer(const ExpertWave& wave, Computed computed) override;
  bool release_oldest() override { return cache_.reap_oldest(); }
  [[nodiscard]] bool keep(LayerId layer, const ExpertDemand& demand, ExpertLease& lease) override;
  [[nodiscard]] bool holds(ExpertKey key) const override { return cache_.holds(key); }
  [[nodiscard]] std::vector<ExpertKey> held() const override { return cache_.held(); }
  [[nodiscard]] bool wants_forecast() const override { return cache_.is_prefetching(); }
  void expect(LayerId layer, std::span<const ExpertId> experts) override;
  bool advance() override { return cache_.advance(); }
  [[nodiscard]] std::optional<MissCounts> miss_counts() const override { return cache_.miss_counts(); }
  void add_to(ExpertStoreStats& stats) const override;

 private:
  [[nodiscard]] bool is_home(LayerId layer, ExpertId expert) const {
    return share_.homes == nullptr || share_.homes->of(layer, expert) == share_.number;
  }
  [[nodiscard]] bool fills_slot(size_t group) const;
  /// A group of the wave, and the slot that its expert is in or is being copied to.
  using Placed = std::pair<size_t, DeviceSlot*>;
  /// Enqueues computing groups in one launch. Returns an event that is reached when they are computed.
  std::shared_ptr<kernels::Event> enqueue(const ExpertWave& wave, std::span<const Placed> together);
  /// The same, after their copies.
  void enqueue_copied(const ExpertWave& wave, std::span<const Placed> together);

  kernels::Queue& queue_;
  kernels::Slice scratch_;
  DeviceCache& cache_;
  MissOptions miss_;
  Share share_;
  /// The work that compute_held has enqueued.
  struct Held {
    std::span<const uint32_t> entries;  // from DeviceCache::hold
    std::shared_ptr<kernels::Event> computed;

    [[nodiscard]] bool has(ExpertId expert) const { return entries[expert.value] != kernels::kNoEntry; }
  };
  std::optional<Held> held_;
  std::vector<size_t> fills_;      // groups of the wave that get empty slots
  std::vector<Placed> under_way_;  // being copied to the cache's slots; computing is not enqueued
};

}  // namespace dspack::runtime
