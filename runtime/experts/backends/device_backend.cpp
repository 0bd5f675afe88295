#include "runtime/experts/backends/device_backend.h"

#include <algorithm>
#include <iterator>

#include "runtime/experts/expert_tracer.h"

namespace dspack::runtime {

DeviceCacheOptions DeviceBackend::Share::own(const DeviceCacheOptions& of_all, uint64_t slots) const {
  DeviceCacheOptions own = of_all;
  own.slots = slots;
  if (homes != nullptr) own.returns = own.returns && slots < homes->count(number);
  return own;
}

void DeviceBackend::begin_pass(const ExpertPass& pass) {
  held_.reset();  // left by a failed wave
  cache_.let_go();
  cache_.begin_pass(pass);
  cache_.reap();
}

void DeviceBackend::compute_held(const ExpertWave& wave, const RouteIds& ids) {
  held_.reset();
  if (wave.phase != Phase::decode) return;
  const std::span<const uint32_t> entries = cache_.hold(wave.layer);
  if (entries.empty()) return;
  const bool is_enqueued = queue_.run_held_experts({.table = &cache_.table(wave.layer),
                                                    .entries = entries,
                                                    .x = wave.x,
                                                    .ids = share_.number == 0 ? ids.on_device : ids.on_host,
                                                    .top_k = wave.top_k,
                                                    .scratch = scratch_,
                                                    .parts = wave.parts});
  if (!is_enqueued) return cache_.let_go();
  held_ = {.entries = entries, .computed = queue_.mark()};
}

void DeviceBackend::begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) {
  cache_.reap();
  under_way_.clear();  // left by a failed wave
  std::vector<ExpertDemand> demands;
  for (const RoutedGroup& group : wave.groups)
    if (is_home(wave.layer, group.demand.expert)) demands.push_back(group.demand);
  cache_.begin_layer(wave.layer, demands);
  std::vector<Placed> hits;
  std::erase_if(missing, [&](size_t group) {
    const ExpertDemand& demand = wave.groups[group].demand;
    DeviceSlot* const slot = is_home(wave.layer, demand.expert) ? cache_.use(wave.layer, demand) : nullptr;
    if (slot == nullptr) return false;
    if (held_ && held_->has(demand.expert)) {
      slot->used_until = held_->computed;
    } else {
      (slot->arrival == nullptr ? hits : under_way_).emplace_back(group, slot);
    }
    return true;
  });
  if (held_) wave.course->hits.push_back({.begin = wave.course->all.begin, .end = held_->computed});
  if (!held_ || !hits.empty()) {
    auto begin = held_ ? queue_.mark() : wave.course->all.begin;
    wave.course->hits.push_back({.begin = std::move(begin), .end = enqueue(wave, hits)});
  }
  held_.reset();
  cache_.let_go();
  fills_.clear();
  const uint64_t empty = cache_.empty_slots(wave.layer);
  for (const size_t group : missing)
    if (fills_.size() < empty && is_home(wave.layer, wave.groups[group].demand.expert)) fills_.push_back(group);
}

bool DeviceBackend::may_take(const ExpertWave& wave, size_t group) const {
  if (wave.tracer != nullptr) return share_.number == 0;
  return is_home(wave.layer, wave.groups[group].demand.expert);
}

std::shared_ptr<kernels::Event> DeviceBackend::enqueue(const ExpertWave& wave, std::span<const Placed> together) {
  std::vector<kernels::ExpertGroup> groups;
  for (const auto& [group, slot] : together) {
    if (wave.tracer != nullptr) {
      wave.tracer->compute(wave, wave.groups[group], slot->weights);
    } else {
      groups.push_back({.entry = slot->entry, .parts = wave.groups[group].parts});
    }
  }
  if (!groups.empty()) {
    queue_.run_expert_parts({.table = &cache_.table(wave.layer),
                             .x = wave.x,
                             .groups = groups,
                             .top_k = wave.top_k,
                             .scratch = scratch_,
                             .parts = wave.parts});
  }
  auto end = queue_.mark();
  for (const auto& [group, slot] : together)
    slot->used_until = end;
  return end;
}

bool DeviceBackend::fills_slot(size_t group) const {
  return std::ranges::find(fills_, group) != fills_.end();
}

Eta DeviceBackend::eta(const ExpertWave& wave, size_t group) {
  if (fills_slot(group)) return {.kind = Eta::Kind::always};
  if (miss_.effective() == MissMode::compute) return {.kind = Eta::Kind::never};
  cache_.reap();
  return cache_.copied_eta(wave.layer);
}

void DeviceBackend::take(const ExpertWave& wave, size_t group, ExpertLease lease) {
  const bool only_fills = miss_.effective() == MissMode::compute || wave.phase == Phase::prefill;
  const RoutedGroup& routed = wave.groups[group];
  const bool may_keep = is_home(wave.layer, routed.demand.expert) && (!only_fills || fills_slot(group));
  DeviceSlot& slot = cache_.move(wave.layer, routed.demand, std::move(lease), may_keep);
  wave.course->last_on_host = 0;
  if (slot.is_used) {
    under_way_.emplace_back(group, &slot);
  } else {  // the window reuses the slot soon: its reader must be enqueued before the next copy
    const Placed only(group, &slot);
    enqueue_copied(wave, {&only, 1});
  }
}

// Experts still being copied are launched one by one: the first is computed while the next is copied.
void DeviceBackend::enqueue_taken(const ExpertWave& wave) {
  std::vector<Placed> taken = std::exchange(under_way_, {});
  const auto waited_for = std::stable_partition(taken.begin(), taken.end(), [](const Placed& placed) {
    return placed.second->arrival == nullptr || placed.second->arrival->is_reached();
  });
  if (const std::span there(taken.begin(), waited_for); !there.empty()) enqueue_copied(wave, there);
  for (const Placed& placed : std::span(waited_for, taken.end()))
    enqueue_copied(wave, {&placed, 1});
}

void DeviceBackend::enqueue_copied(const ExpertWave& wave, std::span<const Placed> together) {
  LayerCourse::Miss miss{.arrival = together.back().second->arrival, .computing = {}};  // copies arrive in order
  for (const auto& [group, slot] : together)
    if (slot->arrival != nullptr) queue_.wait(*slot->arrival);
  miss.computing.begin = queue_.mark();
  miss.computing.end = enqueue(wave, together);
  wave.course->misses.push_back(std::move(miss));
}

// Promotes experts that the CPU computed, so that the cache follows the demands even if the CPU is faster, as long as
// that costs nothing.
void DeviceBackend::offer(const ExpertWave& wave, Computed computed) {
  cache_.computed_by_host(wave.layer, wave.groups[computed.group].demand, std::move(computed.lease),
                          miss_.mode == MissMode::automatic);
}

bool DeviceBackend::keep(LayerId layer, const ExpertDemand& demand, ExpertLease& lease) {
  if (!is_home(layer, demand.expert)) return false;
  (void)cache_.move(layer, demand, std::move(lease), true);
  return true;
}

void DeviceBackend::expect(LayerId layer, std::span<const ExpertId> experts) {
  std::vector<ExpertId> own;
  std::ranges::copy_if(experts, std::back_inserter(own), [&](ExpertId expert) { return is_home(layer, expert); });
  cache_.prefetch(layer, own);
}

void DeviceBackend::add_to(ExpertStoreStats& stats) const {
  VramStats own = cache_.stats();
  own.miss = to_string(miss_.mode);
  own.is_deterministic = miss_.is_deterministic;
  if (share_.homes == nullptr) {
    stats.vram = std::move(own);
  } else {
    if (!stats.vram) stats.vram.emplace();
    stats.vram->add(std::move(own));
  }
}

}  // namespace dspack::runtime
