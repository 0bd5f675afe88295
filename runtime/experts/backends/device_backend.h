// A device computes experts in the slots of its own memory: those that are present at once, in one launch, which finds
// them by itself where tokens are few, so that the device does not wait until the host knows the routes; missing ones
// after their copies from the host's memory, those together that have arrived when the host comes to them. The host
// enqueues and does not wait.
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
  /// Which experts belong to the device, where there are several.
  struct Share {
    const ExpertHomes* homes = nullptr;  // borrowed; null: all do
    size_t number = 0;                   // of the device

    /// Options of its cache with so many slots: one with room for all that belongs to it sends nothing back.
    [[nodiscard]] DeviceCacheOptions own(const DeviceCacheOptions& of_all, uint64_t slots) const;
  };
  /// `queue` computes; `scratch` as kernels::ExpertPartsArgs wants it.
  DeviceBackend(kernels::Queue& queue, kernels::Slice scratch, DeviceCache& cache, const MissOptions& miss,
                const Share& share)
      : queue_(queue), scratch_(scratch), cache_(cache), miss_(miss), share_(share) {}

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override { cache_.accept_drafts(rows); }
  void compute_held(const ExpertWave& wave, const RouteIds& ids) override;
  /// Whether compute_held has enqueued anything that begin_wave has not seen yet.
  [[nodiscard]] bool has_held() const { return held_.has_value(); }
  void begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) override;
  /// What is traced goes to the first device.
  [[nodiscard]] bool may_take(const ExpertWave& wave, size_t group) const override;
  /// Empty slots are filled in any case, by experts in their own order, whichever arrives first: with `--dev
  /// miss=compute` which backend computes what must not depend on a disk.
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
  /// One of the wave's groups, and the slot that its expert is in or comes to.
  using Placed = std::pair<size_t, DeviceSlot*>;
  /// Enqueues the computing of some groups, in one launch. Returns what is reached when they have been computed.
  std::shared_ptr<kernels::Event> enqueue(const ExpertWave& wave, std::span<const Placed> together);
  /// The same after their copies.
  void enqueue_copied(const ExpertWave& wave, std::span<const Placed> together);

  kernels::Queue& queue_;
  kernels::Slice scratch_;
  DeviceCache& cache_;
  MissOptions miss_;
  Share share_;
  /// What compute_held has enqueued.
  struct Held {
    std::span<const uint32_t> entries;  // DeviceCache::hold
    std::shared_ptr<kernels::Event> computed;

    [[nodiscard]] bool has(ExpertId expert) const { return entries[expert.value] != kernels::kNoEntry; }
  };
  std::optional<Held> held_;
  std::vector<size_t> fills_;      // of the wave's groups, those for which there are empty slots
  std::vector<Placed> under_way_;  // to the cache's slots, and not enqueued to be computed
};

}  // namespace dspack::runtime
