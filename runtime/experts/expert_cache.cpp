#include "runtime/experts/expert_cache.h"

#include <algorithm>
#include <utility>

#include "format/base/check.h"

namespace dspack::runtime {

ExpertCache::ExpertCache(std::vector<SlotLayout> layouts, const std::vector<uint64_t>& slots, Options options)
    : options_(std::move(options)), governor_(options_.prefetch) {
  DSPACK_CHECK(layouts.size() == slots.size(), "a number of slots for each layout");
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (const LayerId layer : layouts[i].layers)
      pool_of_layer_[layer] = i;
    pools_.push_back({.layout = std::move(layouts[i]), .limit = slots[i], .policy = options_.policy()});
  }
}

void ExpertCache::begin_pass(const ExpertPass& pass, std::chrono::steady_clock::time_point end) {
  judge_prefetch(end);
  pass_ = pass;
  ++passes_;
  draft_uses_.clear();
  announced_.clear();
  announced_keys_.clear();
  next_announced_ = announced_ahead_ = 0;
}

// The governor judges decode passes through the layers; a pass of one layer alone is an MTP module's.
void ExpertCache::judge_prefetch(std::chrono::steady_clock::time_point end) {
  const CacheCounts& now = prefetch_counts();
  const CacheCounts& before = course_.before;
  if (pass_.phase == Phase::decode && course_.layers > 1 && has_evicted_) {
    const uint64_t misses = now.missed - before.missed;
    governor_.record({.seconds = std::chrono::duration<double>(end - course_.start).count(),
                      .experts = misses + now.hits + now.late - before.hits - before.late,
                      .misses = misses,
                      .useful_bytes = now.useful_bytes - before.useful_bytes,
                      .wasted_bytes = now.wasted_bytes - before.wasted_bytes});
  }
  course_ = {.start = std::chrono::steady_clock::now(), .layers = 0, .before = now};
}

void ExpertCache::accept_drafts(uint32_t rows) {
  const uint32_t first_draft = pass_.rows - std::min(pass_.rows, pass_.draft_rows);
  for (const auto& [row, use] : std::exchange(draft_uses_, {})) {
    if (row - first_draft < rows && find(use.key) != nullptr) pools_[pool_of_layer_.at(use.key.layer)].policy->hit(use);
  }
}

void ExpertCache::begin_layer(LayerId layer, std::span<const ExpertDemand> demands) {
  ++course_.layers;
  wanted_.clear();
  for (const ExpertDemand& demand : demands) {
    wanted_.insert({.layer = layer, .expert = demand.expert});
    ExpertUse use = use_of(layer, demand);
    if (!use.is_draft) continue;
    use.is_draft = false;  // how it counts once the draft is accepted
    draft_uses_.emplace_back(demand.first_row, use);
  }
  if (!expected_.empty() && expected_.front().layer == layer) {
    counts().foreseeable += demands.size();
    counts().expected += expected_.size();
    counts().foreseen +=
        static_cast<uint64_t>(std::ranges::count_if(expected_, [&](ExpertKey key) { return wanted_.contains(key); }));
  }
  end_forecast();
  while (!announced_.empty() && announced_.front().key.layer == layer) {
    announced_keys_.erase(announced_.front().key);
    announced_.pop_front();
    if (next_announced_ > 0) --next_announced_;
  }
}

ExpertUse ExpertCache::use_of(LayerId layer, const ExpertDemand& demand) const {
  return {.key = {.layer = layer, .expert = demand.expert},
          .pass = passes_,
          .phase = pass_.phase,
          .rows = demand.rows,
          .last_row = pass_.rows - std::min(pass_.rows, demand.last_row + 1),
          .is_draft = demand.first_row + pass_.draft_rows >= pass_.rows && pass_.draft_rows > 0};
}

CacheSlot* ExpertCache::find(ExpertKey key) const {
  const auto found = by_key_.find(packed(key));
  return found == by_key_.end() ? nullptr : found->second;
}

void ExpertCache::hit(CacheSlot& slot, const ExpertUse& use, bool is_late) {
  if (end_announcement(slot)) return;
  ++(is_late ? counts().late : counts().hits);
  ++slot.uses;
  if (slot.is_prefetch) {
    slot.is_prefetch = false;
    ++prefetch_counts().useful_prefetches;
    prefetch_counts().useful_bytes += slot.bytes;
  }
  pools_[slot.pool].policy->hit(use);
}

void ExpertCache::count_miss(const ExpertUse& use) {
  ++counts().missed;
  if (use.is_draft) ++counts().draft_misses;
}

Result<CacheSlot*> ExpertCache::insert(const ExpertUse& use, Evict evict) {
  TRY_ASSIGN(CacheSlot * slot, take(use.key, evict));
  if (slot != nullptr) pools_[slot->pool].policy->inserted(use);
  return slot;
}

Result<CacheSlot*> ExpertCache::insert_announced(const ExpertUse& use) {
  TRY_ASSIGN(CacheSlot * slot, insert(use, Evict::distant));
  if (slot == nullptr) return slot;
  ++next_announced_;
  slot->announced_in = passes_;
  ++announced_ahead_;
  return slot;
}

bool ExpertCache::end_announcement(CacheSlot& slot) {
  const uint64_t pass = std::exchange(slot.announced_in, 0);
  if (pass == 0 || pass != passes_) return false;
  --announced_ahead_;
  return true;
}

Result<CacheSlot*> ExpertCache::insert_prefetch(ExpertKey key) {
  TRY_ASSIGN(CacheSlot * slot, take(key, Evict::distant));
  if (slot == nullptr) return slot;
  pools_[slot->pool].policy->prefetched(key, passes_);
  slot->is_prefetch = true;
  return slot;
}

Result<CacheSlot*> ExpertCache::insert_returned(ExpertKey key) {
  TRY_ASSIGN(CacheSlot * slot, take(key, Evict::distant));
  if (slot != nullptr) pools_[slot->pool].policy->returned(key, passes_);
  return slot;
}

void ExpertCache::used_elsewhere(const ExpertUse& use) {
  pools_[pool_of_layer_.at(use.key.layer)].policy->used_elsewhere(use);
}

CacheSlot* ExpertCache::next_to_leave(const Pool& pool, Evict evict) const {
  const bool spares_near = evict == Evict::any && !announced_.empty();
  auto leaves = victim(pool, spares_near ? Evict::distant : evict);
  if (!leaves && spares_near) leaves = victim(pool, evict);
  return leaves ? find(*leaves) : nullptr;
}

void ExpertCache::evict(CacheSlot& slot) {
  DSPACK_CHECK(slot.pins == 0 && slot.is_ready, "an expert that is in use leaves");
  ++counts().evictions;
  has_evicted_ = true;
  if (slot.is_prefetch) prefetch_counts().wasted_bytes += slot.bytes;
  if (options_.evicting) options_.evicting(slot);
  clear(slot);
}

Result<CacheSlot*> ExpertCache::take(ExpertKey key, Evict evict) {
  DSPACK_CHECK(!by_key_.contains(packed(key)), "an expert that has a slot");
  const size_t index = pool_of_layer_.at(key.layer);
  Pool& pool = pools_[index];
  if (pool.empty.empty() && pool.made < pool.limit) {
    TRY_ASSIGN(auto slot, options_.make_slot(index, pool.made));
    slot->number = slots_.size();
    slot->pool = index;
    slots_.push_back(std::move(slot));
    pool.empty.push_back(slots_.back().get());
    ++pool.made;
  }
  if (pool.empty.empty()) {
    CacheSlot* const leaving = next_to_leave(pool, evict);
    if (leaving == nullptr) return leaving;
    this->evict(*leaving);
  }
  CacheSlot* slot = pool.empty.back();
  pool.empty.pop_back();
  slot->is_used = true;
  slot->key = key;
  slot->uses = 0;
  by_key_.emplace(packed(key), slot);
  return slot;
}

std::optional<ExpertKey> ExpertCache::victim(const Pool& pool, Evict evict) const {
  if (evict == Evict::none || pool.limit == 0) return std::nullopt;
  const auto may_leave = [&](ExpertKey key) {
    const CacheSlot* const slot = find(key);
    return slot != nullptr && slot->pins == 0 && slot->is_ready && (evict == Evict::any || !is_near(key));
  };
  const auto spare = std::find_if(pool.spares.rbegin(), pool.spares.rend(), may_leave);
  return spare != pool.spares.rend() ? *spare : pool.policy->victim(may_leave);
}

void ExpertCache::clear(CacheSlot& slot) {
  DSPACK_CHECK(slot.is_used && slot.pins == 0, "a slot in use, or of no expert");
  Pool& pool = pools_[slot.pool];
  pool.policy->removed(slot.key);
  std::erase(pool.spares, slot.key);
  by_key_.erase(packed(slot.key));
  end_announcement(slot);
  slot.is_used = false;
  slot.is_ready = false;
  slot.is_prefetch = false;
  pool.empty.push_back(&slot);
}

void ExpertCache::set_spare(ExpertKey key, bool is_spare) {
  const CacheSlot* const slot = find(key);
  if (slot == nullptr) return;
  auto& spares = pools_[slot->pool].spares;
  std::erase(spares, key);
  if (is_spare) spares.push_back(key);
}

void ExpertCache::announce(LayerId layer, std::span<const ExpertDemand> demands) {
  for (const ExpertDemand& demand : demands) {
    announced_.push_back(use_of(layer, demand));
    announced_keys_.insert(announced_.back().key);
  }
}

std::optional<ExpertUse> ExpertCache::next_announced() {
  while (next_announced_ < announced_.size() && find(announced_[next_announced_].key) != nullptr)
    ++next_announced_;
  if (next_announced_ == announced_.size()) return std::nullopt;
  return announced_[next_announced_];
}

// While slots are left, every expert is read at most once, so prefetching could only add unwanted ones.
bool ExpertCache::is_prefetching() const {
  return pass_.phase == Phase::decode && governor_.is_on() && (has_evicted_ || options_.prefetch == PrefetchMode::on);
}

void ExpertCache::expect(LayerId layer, std::span<const ExpertId> experts) {
  end_forecast();
  for (const ExpertId expert : experts)
    expected_.push_back({.layer = layer, .expert = expert});
}

void ExpertCache::end_forecast() {
  expected_.clear();
  next_expected_ = 0;
}

std::optional<ExpertKey> ExpertCache::next_expected() {
  if (next_expected_ == expected_.size()) return std::nullopt;
  return expected_[next_expected_++];
}

bool ExpertCache::is_near(ExpertKey key) const {
  return wanted_.contains(key) || announced_keys_.contains(key) || std::ranges::find(expected_, key) != expected_.end();
}

std::vector<ExpertKey> ExpertCache::held() const {
  std::vector<ExpertKey> keys;
  keys.reserve(by_key_.size());
  for (const auto& [packed, slot] : by_key_)
    if (slot->is_ready) keys.push_back(slot->key);
  return keys;
}

}  // namespace dspack::runtime
