#include "runtime/experts/device_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/check.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/expert_filling.h"
#include "runtime/experts/pinned_slots.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {
namespace {

// Uses since its arrival after which an expert is expected to stay, and need not be in host memory as well. Before, it
// may be evicted soon, and if evicted experts are dropped, the host's copy is the only one left. The best of 0 to 5 for
// replayed routes (docs/lab/2026-11-gpu.md). If experts go back to the host, 0 is best.
constexpr uint32_t kEstablishedUses = 3;
// Copies under way while the next expert is awaited, if all are loaded: the running one and the next.
constexpr size_t kLoadingCopies = 2;

/// Slots that a pool keeps empty if evicted experts go back to the host. 0: the pool is too small for that.
uint64_t kept_empty(const ExpertCache::Pool& pool) {
  constexpr uint64_t kLeastShare = 16;
  return std::min(kKeptEmpty, pool.limit / kLeastShare);
}

PolicyFactory lru_policy() {
  return [] { return std::make_unique<LruPolicy>(); };
}

}  // namespace

bool ExpertReturns::begin(DeviceSlot& slot, const ExpertLayout& layout) {
  DSPACK_CHECK(!present_, "two experts at once on their way back");
  auto host = host_.take_back(slot.key);
  if (!host) return false;
  auto pieces = pieces_of(layout, host->weights(), slot.weights, piece_bytes_);
  if (slot.arrival != nullptr) queue_->wait(*slot.arrival);
  ++slot.pins;
  present_.emplace(Present{.slot = &slot, .host = *std::move(host), .pieces = std::move(pieces), .under_way = {}});
  return true;
}

DeviceSlot* ExpertReturns::advance() {
  if (!present_) return nullptr;
  Present& present = *present_;
  while (true) {
    while (!present.under_way.empty() && present.under_way.front()->is_reached())
      present.under_way.pop_front();
    if (present.next == present.pieces.size() || present.under_way.size() >= kPiecesAhead) break;
    const ExpertPiece& piece = present.pieces[present.next++];
    queue_->download(piece.host, piece.device);
    present.under_way.push_back(queue_->mark());
  }
  if (!present.under_way.empty()) return nullptr;
  DeviceSlot* const slot = present.slot;
  host_.settle_return(slot->key, !queue_->failure().has_value());
  --slot->pins;
  present_.reset();
  return slot;
}

DeviceSlot* ExpertReturns::finish() {
  while (present_) {
    if (!present_->under_way.empty()) present_->under_way.back()->wait();
    if (DeviceSlot* const slot = advance(); slot != nullptr) return slot;
  }
  return nullptr;
}

Result<std::unique_ptr<DeviceCache>> DeviceCache::make(kernels::Device& device, const format::Checkpoint& checkpoint,
                                                       ExpertStore& host, const DeviceCacheOptions& options) {
  std::unique_ptr<DeviceCache> made(new DeviceCache(device, &host, options.experts.experts, options.ahead_bytes));
  TRY_ASSIGN(const auto layouts, lay_out_experts(checkpoint, options.experts, ExpertPresence::some));
  Sizes sizes{.layouts = device_slot_layouts(layouts, options.experts.experts), .slots = {}, .window = kVramWindow};
  sizes.slots = share_slots(sizes.layouts, options.slots, 0);
  // A host with room for all experts still has those that are evicted here.
  const bool has_room = host.stats().slots >= uint64_t{options.experts.experts} * options.experts.layers.size();
  if (options.returns && !has_room) made->returns_.emplace(device, host, options.ahead_bytes);
  TRY(made->allocate(device, layouts, sizes,
                     {.policy = options.policy,
                      .prefetch = options.prefetch,
                      .make_slot = {},
                      .evicting = [&host](const CacheSlot& slot) { host.set_copied(slot.key, false); }}));
  return made;
}

Result<uint64_t> DeviceCache::bytes_for_all(const format::Checkpoint& checkpoint, const DeviceExperts& experts) {
  TRY_ASSIGN(const auto layouts, lay_out_experts(checkpoint, experts, ExpertPresence::all));
  uint64_t bytes = 0;
  for (const auto& [id, layout] : layouts)
    bytes += layout.expert_bytes * experts.experts;
  return bytes;
}

Result<std::unique_ptr<DeviceCache>> DeviceCache::load(kernels::Device& device, Tier& tier,
                                                       const DeviceExperts& experts, format::Progress* progress,
                                                       const std::stop_token& stop) {
  std::unique_ptr<DeviceCache> made(new DeviceCache(device, nullptr, experts.experts, kAheadBytes));
  TRY_ASSIGN(const auto layouts, lay_out_experts(tier.checkpoint(), experts, ExpertPresence::all));
  Sizes sizes;
  for (const auto& [id, layout] : layouts) {
    sizes.layouts.push_back({.slot_bytes = layout.expert_bytes, .experts = experts.experts, .layers = {id}});
    sizes.slots.push_back(experts.experts);
  }
  TRY(made->allocate(device, layouts, sizes, {.policy = lru_policy(), .make_slot = {}}));
  made->keep_loading({});
  if (experts.layers.empty()) return made;
  TRY_ASSIGN(const auto host, kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  PinnedSlots slots(device);
  TRY_ASSIGN(const auto reader, StreamedStore::make(*host, tier,
                                                    {.shape = experts.shape,
                                                     .layers = experts.layers,
                                                     .slots = kReaderSlots,
                                                     .policy = lru_policy(),
                                                     .memory = &slots}));
  format::SilentProgress silent;
  format::Progress& told = progress == nullptr ? static_cast<format::Progress&>(silent) : *progress;
  told.started({.what = "loading experts",
                .total_bytes = made->loading_.resident_bytes,
                .total_items = made->loading_.resident_experts,
                .item = "experts"});
  const ExpertSink sink{.keep = [&](LayerId layer, const ExpertDemand& demand,
                                    ExpertLease lease) { made->load_one(layer, demand, std::move(lease), told); },
                        .release_oldest = [&] { return made->finish_oldest(told); }};
  Result<void> filled = read_all_experts(*reader, experts, sink, told, stop);
  if (filled) filled = made->copies_->finish();
  told.finished();
  if (!filled) return filled.error();
  made->keep_loading(reader->stats());
  return made;
}

DeviceCache::~DeviceCache() {
  returns_.reset();
  copies_->synchronize();
}

Result<void> DeviceCache::allocate(kernels::Device& device, const std::map<LayerId, ExpertLayout>& layouts,
                                   const Sizes& sizes, ExpertCache::Options options) {
  for (size_t i = 0; i < sizes.layouts.size(); ++i) {
    const LayerId first = sizes.layouts[i].layers.front();
    Pool pool{.layout = layouts.at(first), .memory = {}, .table = {}, .window = {}};
    const uint64_t entries = sizes.slots[i] + sizes.window;
    auto memory = device.allocate(pool.layout.expert_bytes * entries);
    if (!memory) {
      const bool is_one = sizes.layouts[i].layers.size() == 1;
      return memory.error().in(fmt::format("device memory for {} experts{}", entries,
                                           is_one ? fmt::format(" of layer {}", first.value) : ""));
    }
    pool.memory = std::move(*memory);
    pool.window = std::vector<DeviceSlot>(sizes.window);
    std::vector<kernels::ExpertMatrices> matrices;
    for (uint64_t entry = 0; entry < entries; ++entry) {
      const ExpertWeights weights = weights_at(pool.layout, {pool.memory.get(), entry * pool.layout.expert_bytes});
      matrices.push_back(weights.matrices());
      if (entry >= sizes.window) continue;
      pool.window[entry].entry = static_cast<uint32_t>(entry);
      pool.window[entry].weights = weights;
    }
    auto table = device.make_expert_table(matrices);
    if (!table) return table.error().in(fmt::format("layer {}", first.value));
    pool.table = std::move(*table);
    pools_.push_back(std::move(pool));
  }
  options.make_slot = [this](size_t index, uint64_t place) -> Result<std::unique_ptr<CacheSlot>> {
    const Pool& pool = pools_[index];
    auto slot = std::make_unique<DeviceSlot>();
    slot->entry = static_cast<uint32_t>(pool.window.size() + place);
    slot->weights = weights_at(pool.layout, {pool.memory.get(), slot->entry * pool.layout.expert_bytes});
    slot->bytes = pool.layout.expert_bytes;
    return std::unique_ptr<CacheSlot>(std::move(slot));
  };
  cache_.emplace(sizes.layouts, sizes.slots, std::move(options));
  return {};
}

// Takes a layer's slots in the order of its experts, whichever is read first, so that an expert's number is its entry
// in the table.
void DeviceCache::load_one(LayerId layer, const ExpertDemand& demand, ExpertLease lease, format::Progress& progress) {
  for (uint32_t expert = 0; expert < experts_ && !holds({.layer = layer, .expert = ExpertId(expert)}); ++expert) {
    const DeviceSlot* const slot =
        insert(cache_->use_of(layer, {.expert = ExpertId(expert)}), ExpertCache::Evict::none);
    DSPACK_CHECK(slot != nullptr && slot->entry == expert, "an expert in another's place");
  }
  while (under_way_.size() >= kLoadingCopies)
    finish_oldest(progress);
  auto* const slot = static_cast<DeviceSlot*>(cache_->find({.layer = layer, .expert = demand.expert}));
  ++slot->pins;
  copy(pool_of(layer), *slot, std::move(lease));
}

bool DeviceCache::finish_oldest(format::Progress& progress) {
  if (under_way_.empty()) return false;
  const uint64_t bytes = under_way_.front().bytes;
  reap_oldest();
  progress.advanced(bytes);
  return true;
}

void DeviceCache::keep_loading(const ExpertStoreStats& reading) {
  loading_.policy = "resident";
  loading_.prefetch = to_string(PrefetchMode::off);
  loading_.read_experts = reading.read_experts;
  loading_.opened_files = reading.opened_files;
  loading_.loaded_bytes = reading.bytes_read();
  loading_.resident_experts = loading_.resident_bytes = 0;
  for (const ExpertCache::Pool& pool : cache_->pools())
    loading_.resident_experts += pool.limit;
  for (const Pool& pool : pools_)
    loading_.resident_bytes += pool.memory->size_bytes();
  loading_.slots = loading_.resident_experts;
  loading_.slot_bytes = loading_.resident_bytes;
}

const DeviceCache::Pool& DeviceCache::pool_of(LayerId layer) const {
  DSPACK_CHECK(cache_->has_layer(layer), fmt::format("layer {} has no experts on the device", layer.value));
  return pools_[static_cast<size_t>(&cache_->pool_of(layer) - cache_->pools().data())];
}

uint64_t DeviceCache::expert_bytes(LayerId layer) const {
  return cache_->has_layer(layer) ? pool_of(layer).layout.expert_bytes : 0;
}

uint64_t DeviceCache::empty_slots(LayerId layer) const {
  if (!cache_->has_layer(layer)) return 0;
  const ExpertCache::Pool& pool = cache_->pool_of(layer);
  return sends_back(pool) ? pool.limit - pool.made : ExpertCache::empty_slots(pool);
}

DeviceSlot* DeviceCache::use(LayerId layer, const ExpertDemand& demand) {
  const ExpertUse use = cache_->use_of(layer, demand);
  auto* const slot = static_cast<DeviceSlot*>(cache_->find(use.key));
  if (slot == nullptr) return nullptr;
  if (ahead_ && ahead_->slot == slot) finish_ahead();
  slot->is_wanted_again = true;
  if (slot->arrival != nullptr && slot->arrival->is_reached()) slot->arrival.reset();
  cache_->hit(*slot, use, slot->arrival != nullptr);
  if (returns_) host_->used_elsewhere(layer, demand);
  const bool is_established = slot->uses >= kEstablishedUses || sends_back(cache_->pool_of(layer));
  if (host_ != nullptr && is_established) host_->set_copied(use.key, true);
  return slot;
}

// Skips pinned experts: they are on their way to the host, and are evicted when they arrive there.
std::span<const uint32_t> DeviceCache::hold(LayerId layer) {
  let_go();
  if (!cache_->has_layer(layer)) return {};
  entries_.assign(experts_, kernels::kNoEntry);
  for (uint32_t expert = 0; expert < experts_; ++expert) {
    auto* const slot = static_cast<DeviceSlot*>(cache_->find({.layer = layer, .expert = ExpertId(expert)}));
    if (slot == nullptr || !slot->is_ready || slot->pins > 0) continue;
    if (slot->arrival != nullptr && !slot->arrival->is_reached()) continue;
    slot->arrival.reset();  // query the event once, not for every token
    ++slot->pins;
    held_.push_back(slot);
    entries_[expert] = slot->entry;
  }
  return held_.empty() ? std::span<const uint32_t>() : entries_;
}

void DeviceCache::let_go() {
  for (DeviceSlot* const slot : held_)
    --slot->pins;
  held_.clear();
}

DeviceSlot* DeviceCache::insert(const ExpertUse& use, ExpertCache::Evict evict) {
  const auto slot = cache_->insert(use, evict);
  DSPACK_CHECK(slot.has_value(), "a slot whose memory is there cannot fail");
  return static_cast<DeviceSlot*>(*slot);
}

DeviceSlot& DeviceCache::move(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool may_keep) {
  const Pool& pool = pool_of(layer);
  const ExpertUse use = cache_->use_of(layer, demand);
  cache_->count_miss(use);
  ++counts().moved;
  counts().moved_bytes += pool.layout.expert_bytes;
  const auto evict = use.phase == Phase::decode ? ExpertCache::Evict::distant : ExpertCache::Evict::none;
  DeviceSlot* slot = may_keep ? insert(use, evict) : nullptr;
  if (slot == nullptr) {
    Pool& mine = pools_[static_cast<size_t>(&pool - pools_.data())];
    slot = &mine.window[mine.turn++ % mine.window.size()];
  }
  copy(pool, *slot, std::move(host));
  if (slot->is_used && sends_back(cache_->pool_of(layer))) host_->set_copied(use.key, true);
  return *slot;
}

void DeviceCache::wait_for_work(DeviceSlot& slot) {
  if (slot.used_until != nullptr) copies_->wait(*slot.used_until);
  slot.used_until.reset();
}

void DeviceCache::copy(const Pool& pool, DeviceSlot& slot, ExpertLease host) {
  wait_for_work(slot);
  auto begin = copies_->mark();
  upload_expert(*copies_, pool.layout, host.weights(), slot.weights);
  slot.arrival = copies_->mark();
  slot.is_ready = slot.is_used;  // may be evicted: the next copy to the slot waits on the device
  under_way_.push_back({.host = std::move(host),
                        .begin = std::move(begin),
                        .end = slot.arrival,
                        .bytes = pool.layout.expert_bytes,
                        .is_whole = true});
}

void DeviceCache::start_ahead(const Pool& pool, DeviceSlot& slot, ExpertLease host) {
  DSPACK_CHECK(!ahead_, "two experts at once that nobody waits for");
  auto pieces = pieces_of(pool.layout, host.weights(), slot.weights, ahead_bytes_);
  slot.arrival.reset();
  ahead_.emplace(Ahead{.slot = &slot, .host = std::move(host), .pieces = std::move(pieces)});
}

// The slot is not ready until all of it is enqueued, so its expert is not evicted.
void DeviceCache::enqueue_piece(bool is_ahead) {
  const ExpertPiece& piece = ahead_->pieces[ahead_->next];
  if (ahead_->next == 0) wait_for_work(*ahead_->slot);
  Copy copy{.host = {}, .begin = copies_->mark(), .end = {}, .bytes = piece.host.size(), .is_ahead = is_ahead};
  copies_->upload(piece.device, piece.host);
  copy.end = copies_->mark();
  if (++ahead_->next == ahead_->pieces.size()) {
    ahead_->slot->arrival = copy.end;
    ahead_->slot->is_ready = true;
    copy.host.emplace(std::move(ahead_->host));
    ahead_.reset();
  }
  under_way_.push_back(std::move(copy));
}

void DeviceCache::finish_ahead() {
  while (ahead_)
    enqueue_piece(false);
}

void DeviceCache::drop_ahead() {
  DeviceSlot& slot = *ahead_->slot;
  const auto last = std::ranges::find_if(under_way_.rbegin(), under_way_.rend(),
                                         [](const Copy& copy) { return !copy.host.has_value(); });
  if (last != under_way_.rend()) last->host.emplace(std::move(ahead_->host));  // the copies read from it
  uint64_t copied = 0;
  for (size_t i = 0; i < ahead_->next; ++i)
    copied += ahead_->pieces[i].host.size();
  ahead_.reset();
  CacheCounts& counts = cache_->prefetch_counts();
  counts.prefetched_bytes -= slot.bytes - copied;
  counts.wasted_bytes += copied;
  cache_->clear(slot);
}

void DeviceCache::begin_layer(LayerId layer, std::span<const ExpertDemand> demands) {
  cache_->begin_layer(layer, demands);
  if (!ahead_ || !ahead_->slot->is_prefetch || ahead_->slot->key.layer != layer) return;
  const ExpertId expert = ahead_->slot->key.expert;
  if (std::ranges::find(demands, expert, &ExpertDemand::expert) == demands.end()) drop_ahead();
}

size_t DeviceCache::pieces_under_way() const {
  return static_cast<size_t>(std::ranges::count(under_way_, true, &Copy::is_ahead));
}

// Learns from whole experts only: a piece is too short to measure the link by.
void DeviceCache::finish(const Copy& copy) {
  if (copy.is_whole) link_.learn(copy.bytes, 1, copy.end->seconds_since(*copy.begin));
}

void DeviceCache::computed_by_host(LayerId layer, const ExpertDemand& demand, ExpertLease host, bool promotes) {
  const Pool& pool = pool_of(layer);
  const ExpertUse use = cache_->use_of(layer, demand);
  cache_->count_miss(use);
  ++counts().computed;
  counts().computed_bytes += pool.layout.expert_bytes;
  if (!promotes || ahead_) return;
  reap();
  if (has_demand_under_way()) return;
  DeviceSlot* const slot = insert(use, ExpertCache::Evict::distant);
  if (slot == nullptr) return;
  ++counts().promoted;
  counts().promoted_bytes += pool.layout.expert_bytes;
  start_ahead(pool, *slot, std::move(host));  // advance() enqueues it: the layer may have more to compute
}

void DeviceCache::prefetch(LayerId layer, std::span<const ExpertId> experts) {
  if (!is_prefetching() || !cache_->has_layer(layer)) return;
  cache_->expect(layer, experts);
  advance();
}

bool DeviceCache::start_expected() {
  while (is_prefetching()) {
    const auto key = cache_->next_expected();
    if (!key) return false;
    if (holds(*key)) continue;
    auto host = host_->lease_if_ready(*key);
    if (!host) continue;
    const auto taken = cache_->insert_prefetch(*key);
    if (!taken || *taken == nullptr) return false;
    CacheCounts& counts = cache_->prefetch_counts();
    ++counts.prefetches;
    counts.prefetched_bytes += expert_bytes(key->layer);
    start_ahead(pool_of(key->layer), static_cast<DeviceSlot&>(**taken), *std::move(host));
    return true;
  }
  return false;
}

bool DeviceCache::advance() {
  const bool returns = advance_returns();
  if (!ahead_ && !cache_->has_expected()) return returns;
  reap();
  while (!has_demand_under_way() && pieces_under_way() < kPiecesAhead) {
    if (!ahead_ && !start_expected()) return returns;
    enqueue_piece(true);
  }
  return true;
}

bool DeviceCache::sends_back(const ExpertCache::Pool& pool) const {
  return returns_ && kept_empty(pool) > 0;
}

bool DeviceCache::advance_returns() {
  if (!returns_ || cache_->pass().phase != Phase::decode) return false;
  do {
    if (DeviceSlot* const slot = returns_->advance(); slot != nullptr) settle_return(*slot);
    if (returns_->is_busy()) return true;
  } while (begin_return());
  return false;
}

bool DeviceCache::begin_return() {
  for (const ExpertCache::Pool& pool : cache_->pools()) {
    while (ExpertCache::empty_slots(pool) < kept_empty(pool)) {
      auto* const slot = static_cast<DeviceSlot*>(cache_->next_to_leave(pool, ExpertCache::Evict::distant));
      if (slot == nullptr) break;
      if (host_->lease_if_ready(slot->key)) {  // it can be dropped
        cache_->evict(*slot);
      } else if (returns_->begin(*slot, pool_of(slot->key.layer).layout)) {
        slot->is_wanted_again = false;
        return true;
      } else {
        break;  // the host has no room: the next expert evicts it
      }
    }
  }
  return false;
}

// An expert that was wanted on its way stays here, and is spare in host memory.
void DeviceCache::settle_return(DeviceSlot& slot) {
  ++counts().returned;
  counts().returned_bytes += slot.bytes;
  if (slot.is_wanted_again) return host_->set_copied(slot.key, true);
  cache_->evict(slot);
}

void DeviceCache::reap() {
  while (!under_way_.empty() && under_way_.front().end->is_reached()) {
    finish(under_way_.front());
    under_way_.pop_front();
  }
}

bool DeviceCache::reap_oldest() {
  if (under_way_.empty()) finish_ahead();
  if (under_way_.empty() && returns_) {
    DeviceSlot* const slot = returns_->finish();
    if (slot != nullptr) settle_return(*slot);
    return slot != nullptr;
  }
  if (under_way_.empty()) return false;
  under_way_.front().end->wait();
  finish(under_way_.front());
  under_way_.pop_front();
  return true;
}

Eta DeviceCache::copied_eta(LayerId layer) const {
  uint64_t bytes = 0;
  for (const Copy& copy : under_way_)
    bytes += copy.bytes;
  return Eta::after(link_.seconds(bytes, 1).value_or(0), link_.seconds(expert_bytes(layer), 1));
}

VramStats DeviceCache::stats() const {
  VramStats stats;
  stats.phases = counts_;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    static_cast<CacheCounts&>(stats.phases[phase]) = cache_->all_counts()[phase];
    stats.draft_misses += stats.phases[phase].draft_misses;
  }
  for (const ExpertCache::Pool& pool : cache_->pools())
    stats.slots += pool.limit;
  for (const Pool& pool : pools_)
    stats.bytes += pool.memory->size_bytes();
  stats.used = cache_->used();
  stats.link_bytes_per_second = link_.bytes_per_second();
  return stats;
}

MissCounts DeviceCache::miss_counts() const {
  MissCounts misses;
  for (const CacheCounts& counts : cache_->all_counts()) {
    misses.misses += counts.missed;
    misses.draft_misses += counts.draft_misses;
  }
  return misses;
}

}  // namespace dspack::runtime
