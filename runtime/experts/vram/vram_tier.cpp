#include "runtime/experts/vram/vram_tier.h"

#include <fmt/format.h>

#include <algorithm>

namespace dspack::runtime {

namespace {

// Copies on the chance that may be under way: more would stand before what the next layer turns out to want.
constexpr auto kMostPrefetches = 2;
// An expert that was wanted so often since it came is expected to stay, and need not lie in the host's memory as well.
// Before, it may leave soon, and what leaves is dropped: then the host's copy is all there is. Of 0 to 5 the best for
// replayed routes (docs/performance.md).
constexpr uint32_t kEstablishedUses = 3;

}  // namespace

VramTier::VramTier(kernels::Device& device, StreamedStore& host, const VramTierOptions& options)
    : host_(host), options_(options), copies_(device.make_queue()), governor_(options.prefetch) {}

Result<std::unique_ptr<VramTier>> VramTier::make(kernels::Device& device, StreamedStore& host,
                                                 const VramTierOptions& options) {
  std::unique_ptr<VramTier> tier(new VramTier(device, host, options));
  TRY_ASSIGN(const auto layouts, lay_out_experts(host.checkpoint(), options.experts, ExpertPresence::some));
  const std::vector<SlotLayout> groups = device_slot_layouts(layouts, options.experts.experts);
  const std::vector<uint64_t> slots = share_slots(groups, options.slots, 0);
  for (size_t i = 0; i < groups.size(); ++i) {
    TRY_ASSIGN(auto pool, VramPool::make(device, layouts.at(groups[i].layers.front()), slots[i],
                                         options.policy(std::max<uint64_t>(slots[i], 1), options.seed + i)));
    for (const LayerId layer : groups[i].layers)
      tier->pool_of_layer_[layer] = pool.get();
    tier->stats_.slots += pool->slots();
    tier->stats_.bytes += pool->size_bytes();
    tier->pools_.push_back(std::move(pool));
  }
  return tier;
}

VramTier::~VramTier() {
  copies_->synchronize();
}

VramPool& VramTier::pool_of(LayerId layer) const {
  const auto found = pool_of_layer_.find(layer);
  DSPACK_CHECK(found != pool_of_layer_.end(), fmt::format("layer {} has no experts on the device", layer.value));
  return *found->second;
}

void VramTier::begin_pass(const ExpertPass& pass) {
  end_pass();
  uses_.begin_pass(pass);
  reap();
}

// A decode pass through the layers is what the governor judges; one layer alone is an MTP module's.
void VramTier::end_pass() {
  const VramPhaseStats& now = prefetch_counts();
  const VramPhaseStats& before = course_.before;
  const auto end = std::chrono::steady_clock::now();
  if (uses_.pass().phase == Phase::decode && course_.layers > 1 && has_evicted_) {
    const uint64_t misses = now.misses() - before.misses();
    const uint64_t useful = now.useful_prefetches - before.useful_prefetches;
    governor_.record({.seconds = std::chrono::duration<double>(end - course_.start).count(),
                      .experts = misses + now.hits + now.late - before.hits - before.late,
                      .misses = misses,
                      .useful_bytes = useful * pools_.front()->layout().expert_bytes,
                      .wasted_bytes = now.wasted_bytes - before.wasted_bytes});
  }
  course_ = {.start = end, .before = now, .layers = 0};
}

void VramTier::accept_drafts(uint32_t rows) {
  for (const ExpertUse& use : uses_.accept_drafts(rows)) {
    VramPool& pool = pool_of(use.key.layer);
    if (pool.find(use.key) != nullptr) pool.policy().hit(use);
  }
}

void VramTier::begin_layer(LayerId layer, std::span<const ExpertDemand> demands) {
  ++course_.layers;
  wanted_.clear();
  for (const ExpertDemand& demand : demands)
    wanted_.insert({.layer = layer, .expert = demand.expert});
  expected_.clear();
  uses_.remember_drafts(layer, demands);
}

VramSlot* VramTier::use(LayerId layer, const ExpertDemand& demand) {
  if (!pool_of_layer_.contains(layer)) return nullptr;  // no expert of the layer is usable; the host's store says why
  VramPool& pool = pool_of(layer);
  const ExpertUse use = uses_.use_of(layer, demand);
  VramSlot* const slot = pool.find(use.key);
  if (slot == nullptr) return nullptr;
  if (slot->arrival != nullptr && slot->arrival->is_reached()) slot->arrival.reset();
  ++(slot->arrival == nullptr ? counts().hits : counts().late);
  if (slot->is_prefetch) ++prefetch_counts().useful_prefetches;
  slot->is_prefetch = false;
  pool.policy().hit(use);
  if (++slot->uses >= kEstablishedUses) host_.set_copied(use.key, true);
  return slot;
}

void VramTier::evict(VramPool& pool, VramSlot& slot) {
  ++counts().evictions;
  has_evicted_ = true;
  if (slot.is_prefetch) prefetch_counts().wasted_bytes += pool.layout().expert_bytes;
  host_.set_copied(slot.key, false);
  pool.drop(slot);
}

VramSlot* VramTier::take(VramPool& pool, ExpertKey key, bool may_evict) {
  if (pool.empty() == nullptr && may_evict) {
    // What this layer has computed from may go: its work is enqueued. What it has not, it needs.
    const auto is_free = [&](ExpertKey candidate) {
      return !wanted_.contains(candidate) && !expected_.contains(candidate);
    };
    if (VramSlot* const leaving = pool.victim(is_free)) evict(pool, *leaving);
  }
  VramSlot* const slot = pool.empty();
  if (slot != nullptr) pool.keep(*slot, key);
  return slot;
}

VramSlot& VramTier::move(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool may_keep) {
  VramPool& pool = pool_of(layer);
  const ExpertUse use = uses_.use_of(layer, demand);
  ++counts().moved;
  counts().moved_bytes += pool.layout().expert_bytes;
  if (use.is_draft) ++stats_.draft_misses;
  VramSlot* const kept = may_keep ? take(pool, use.key, use.phase == Phase::decode) : nullptr;
  VramSlot& slot = kept == nullptr ? pool.window() : *kept;
  copy(pool, slot, std::move(host), CopyReason::wanted);
  if (kept != nullptr) pool.policy().inserted(use);
  return slot;
}

void VramTier::copy(VramPool& pool, VramSlot& slot, ExpertLease host, CopyReason reason) {
  if (slot.used_until != nullptr) copies_->wait(*slot.used_until);
  slot.used_until.reset();
  auto begin = copies_->mark();
  upload_expert(*copies_, pool.layout(), host.weights(), slot.weights);
  slot.arrival = copies_->mark();
  under_way_.push_back({.host = std::move(host),
                        .begin = std::move(begin),
                        .end = slot.arrival,
                        .bytes = pool.layout().expert_bytes,
                        .reason = reason});
}

void VramTier::count_computed(LayerId layer, const ExpertDemand& demand) {
  ++counts().computed;
  counts().computed_bytes += pool_of(layer).layout().expert_bytes;
  if (uses_.use_of(layer, demand).is_draft) ++stats_.draft_misses;
}

void VramTier::promote(LayerId layer, const ExpertDemand& demand, ExpertLease host) {
  reap();
  if (!under_way_.empty()) return;
  VramPool& pool = pool_of(layer);
  const ExpertUse use = uses_.use_of(layer, demand);
  VramSlot* const slot = take(pool, use.key, true);
  if (slot == nullptr) return;
  ++counts().promoted;
  counts().promoted_bytes += pool.layout().expert_bytes;
  copy(pool, *slot, std::move(host), CopyReason::wanted);
  pool.policy().inserted(use);
}

bool VramTier::is_prefetching() const {
  return uses_.pass().phase == Phase::decode && governor_.is_on() &&
         (has_evicted_ || options_.prefetch == PrefetchMode::on);
}

void VramTier::prefetch(LayerId layer, std::span<const ExpertId> experts) {
  if (!is_prefetching() || !pool_of_layer_.contains(layer)) return;
  VramPool& pool = pool_of(layer);
  for (const ExpertId expert : experts)
    expected_.insert({.layer = layer, .expert = expert});
  reap();
  auto left = kMostPrefetches - std::ranges::count(under_way_, CopyReason::prefetch, &Copy::reason);
  for (const ExpertId expert : experts) {
    if (left <= 0) return;
    const ExpertKey key{.layer = layer, .expert = expert};
    if (pool.find(key) != nullptr) continue;
    auto host = host_.lease_if_ready(key);
    if (!host) continue;
    VramSlot* const slot = take(pool, key, true);
    if (slot == nullptr) return;
    slot->is_prefetch = true;
    pool.policy().prefetched(key, uses_.number());
    ++prefetch_counts().prefetches;
    prefetch_counts().prefetched_bytes += pool.layout().expert_bytes;
    copy(pool, *slot, *std::move(host), CopyReason::prefetch);
    --left;
  }
}

void VramTier::finish(const Copy& copy) {
  rates_.moved(copy.bytes, copy.end->seconds_since(*copy.begin));
}

void VramTier::reap() {
  while (!under_way_.empty() && under_way_.front().end->is_reached()) {
    finish(under_way_.front());
    under_way_.pop_front();
  }
}

bool VramTier::reap_oldest() {
  if (under_way_.empty()) return false;
  under_way_.front().end->wait();
  finish(under_way_.front());
  under_way_.pop_front();
  return true;
}

double VramTier::backlog_seconds() const {
  uint64_t bytes = 0;
  for (const Copy& copy : under_way_)
    bytes += copy.bytes;
  return rates_.move_seconds(bytes).value_or(0);
}

VramStats VramTier::stats() const {
  VramStats stats = stats_;
  for (const auto& pool : pools_)
    stats.used += pool->used();
  stats.link_bytes_per_second = rates_.link_bytes_per_second();
  stats.cpu_bytes_per_second = rates_.cpu_bytes_per_second();
  return stats;
}

}  // namespace dspack::runtime
