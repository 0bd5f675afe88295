#include "runtime/experts/streamed_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "format/base/page_range.h"
#include "format/base/result.h"
#include "format/base/seconds.h"
#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

namespace {

// One is read while the slot of the next is found; more would only delay demands.
constexpr uint64_t kMaxPrefetches = 2;

}  // namespace

/// A slot of the host's cache of experts, which is filled from files. Guarded by the store's lock.
struct StreamedStore::Slot final : CacheSlot {
  std::unique_ptr<kernels::Buffer> memory;
  const SlotPlan* plan = nullptr;  // the expert's layout
  bool is_loading = false;
  std::optional<Error> error;         // reading has failed
  Medium medium = Medium::disk;       // where it was read from
  Urgency urgency = Urgency::demand;  // how urgently it is read
  bool may_fail = false;              // begun before it was wanted: a failure is no error, it is read again when wanted
  bool is_guess = false;              // begun as a speculative prefetch
  bool is_second_try = false;
  std::chrono::steady_clock::time_point arrival;  // when it became ready

  [[nodiscard]] std::span<std::byte> memory_bytes() const { return kernels::host_bytes(*memory); }
};

// Slots of demands are pinned until they are taken; demands without a slot wait for one.
class StreamedStore::Request final : public ExpertRequest {
 public:
  Request(StreamedStore& store, LayerId layer, std::vector<ExpertDemand> demands)
      : store_(store), layer_(layer), demands_(std::move(demands)) {}

  ~Request() override {
    const std::lock_guard lock(store_.mutex_);
    for (const Pinned& pinned : ready_)
      store_.unpin(*pinned.slot);
    for (const Pinned& pinned : coming_)
      store_.unpin(*pinned.slot);
    store_.request_ = nullptr;
  }

  // With the lock held.
  Result<void> begin() {
    for (size_t i = 0; i < demands_.size(); ++i) {
      const ExpertKey key{.layer = layer_, .expert = demands_[i].expert};
      TRY(store_.check_layer(key));
      Slot* const slot = store_.find(key);
      if (slot == nullptr) {
        missing_.push_back(i);
        continue;
      }
      store_.count_hit(*slot, store_.cache_->use_of(layer_, demands_[i]));
      ++slot->pins;
      const bool is_ready = slot->is_ready;
      (is_ready ? ready_ : coming_).push_back({.index = i, .slot = slot, .was_missing = !is_ready});
    }
    if (store_.phase() == Phase::prefill) order_missing();
    return start_missing();
  }

  // With the lock held: starts missing experts while slots are available and, in a prefill, the window allows.
  Result<void> start_missing() {
    while (!missing_.empty() && (store_.phase() == Phase::decode || ahead() < store_.window(layer_))) {
      auto slot = store_.start_miss(store_.cache_->use_of(layer_, demands_[missing_.front()]), Urgency::demand);
      if (!slot) return slot.error();
      if (*slot == nullptr) return {};
      ++(*slot)->pins;
      coming_.push_back({.index = missing_.front(), .slot = *slot, .was_missing = true});
      missing_.pop_front();
    }
    return {};
  }

  Result<ExpertLease> next(const std::stop_token& stop) override {
    std::unique_lock lock(store_.mutex_);
    TRY(collect());
    if (ready_.empty()) {
      const auto start = std::chrono::steady_clock::now();
      const auto outcome = wait(lock, stop);
      store_.cache_->counts().waiting_seconds += seconds_since(start);
      if (!outcome) return outcome.error();
    }
    const Pinned taken = ready_.front();
    ready_.pop_front();
    if (taken.was_missing) last_arrival_ = std::max(last_arrival_, taken.slot->arrival);
    return ExpertLease(taken.index, taken.slot->weights, &store_, taken.slot->number, taken.was_missing);
  }

  [[nodiscard]] double transfer_seconds() const override {
    return std::chrono::duration<double>(last_arrival_ - start_).count();
  }

  bool is_starved() override {
    const std::lock_guard lock(store_.mutex_);
    return has_missing();
  }
  // With the lock held.
  [[nodiscard]] bool has_missing() const { return !missing_.empty(); }

  bool is_ready() override {
    const std::lock_guard lock(store_.mutex_);
    return !ready_.empty() ||
           std::ranges::any_of(coming_, [](const Pinned& pinned) { return !pinned.slot->is_loading; });
  }

 private:
  struct Pinned {
    size_t index = 0;  // index of the demand
    Slot* slot = nullptr;
    bool was_missing = false;
  };

  // Experts that only a prompt's early tokens want come first: they are evicted first again, and make room for the
  // rest.
  void order_missing() {
    std::ranges::stable_sort(
        missing_, {}, [this](size_t index) { return std::pair(demands_[index].last_row, demands_[index].rows); });
  }

  // Missing experts that are being read or wait to be computed.
  [[nodiscard]] size_t ahead() const {
    return coming_.size() + static_cast<size_t>(std::ranges::count_if(ready_, &Pinned::was_missing));
  }

  // Moves arrived experts to `ready_`, and starts reading more.
  Result<void> collect() {
    for (auto next = coming_.begin(); next != coming_.end();) {
      if (next->slot->error) return failure(next);
      if (next->slot->is_ready) {
        ready_.push_back(*next);
        next = coming_.erase(next);
      } else {
        ++next;
      }
    }
    if (store_.keep_error_) return *store_.keep_error_;
    return start_missing();
  }

  Error failure(const std::deque<Pinned>::iterator& failed) {
    Slot& slot = *failed->slot;
    Error error = explained(*slot.error, slot.key);
    coming_.erase(failed);
    store_.unpin(slot);
    return error;
  }

  Result<void> wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop) {
    while (true) {
      TRY(collect());
      if (!ready_.empty()) return {};
      if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
      DSPACK_CHECK(!coming_.empty() || !missing_.empty(), "every demand was taken");
      if (coming_.empty() && store_.is_idle()) {
        return Error{ErrorKind::budget, "no slot is free for the next expert; allow more with --ram or --experts"};
      }
      store_.changed_.wait(lock, stop, [&] { return store_.has_changed_; });
      store_.has_changed_ = false;
    }
  }

  StreamedStore& store_;
  LayerId layer_;
  std::vector<ExpertDemand> demands_;
  std::deque<size_t> missing_;
  std::deque<Pinned> coming_;
  std::deque<Pinned> ready_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_arrival_ = start_;
};

Result<std::unique_ptr<StreamedStore>> StreamedStore::make(kernels::Device& device, Tier& tier,
                                                           const StreamedStoreOptions& options) {
  std::unique_ptr<StreamedStore> store(new StreamedStore(device, tier, options));
  TRY(store->make_cache());
  store->transfers_ = std::make_unique<TransferPool>(tier.depth());
  return store;
}

StreamedStore::~StreamedStore() {
  if (transfers_ == nullptr) return;
  std::unique_lock lock(mutex_);
  cache_->end_forecast();
  changed_.wait(lock, [this] { return keeping_ == 0; });
}

Result<void> StreamedStore::make_cache() {
  TRY_ASSIGN(const std::vector<SlotLayout> layouts, slot_layouts(tier_.checkpoint(), options_.shape, options_.layers));
  const std::vector<uint64_t> slots = share_slots(layouts, options_.slots, options_.least_slots);
  cache_.emplace(
      layouts, slots,
      ExpertCache::Options{.policy = options_.policy,
                           .prefetch = options_.prefetch,
                           .make_slot = [this](size_t pool, uint64_t place) { return make_slot(pool, place); }});
  std::vector<SlotsWanted> wanted;
  for (const ExpertCache::Pool& pool : cache_->pools()) {
    stats_.slots += pool.limit;
    stats_.slot_bytes += pool.limit * pool.layout.slot_bytes;
    wanted.push_back({.slot_bytes = pool.layout.slot_bytes, .slots = pool.limit});
  }
  if (options_.memory != nullptr) options_.memory->expect(wanted);
  stats_.prefetch = to_string(options_.prefetch);
  stats_.in_place = options_.in_place;
  if (!cache_->pools().empty()) stats_.policy = cache_->pools().front().policy->name();
  return {};
}

Result<std::unique_ptr<CacheSlot>> StreamedStore::make_slot(size_t index, uint64_t place) {
  const ExpertCache::Pool& pool = cache_->pools()[index];
  auto slot = std::make_unique<Slot>();
  if (options_.in_place) return std::unique_ptr<CacheSlot>(std::move(slot));  // it gets memory with each expert
  auto memory = options_.memory != nullptr ? options_.memory->take(pool.layout.slot_bytes)
                                           : device_.allocate(pool.layout.slot_bytes);
  if (!memory) {
    return memory.error().in(
        fmt::format("slot {} of {} for experts (fewer with --ram or --experts)", place + 1, pool.limit));
  }
  slot->memory = std::move(*memory);
  return std::unique_ptr<CacheSlot>(std::move(slot));
}

Result<void> StreamedStore::check_layer(ExpertKey key) {
  if (cache_->has_layer(key.layer)) return {};
  // No expert of the layer is usable; finds out what is wrong with this one.
  const auto plan = plan_slot(tier_.checkpoint(), key, options_.shape);
  if (!plan) return explained(plan.error(), key);
  return explained({ErrorKind::invalid, "the layer is not one of the run's"}, key);
}

void StreamedStore::begin_pass(const ExpertPass& pass) {
  const std::lock_guard lock(mutex_);
  cache_->begin_pass(pass, last_release_);
  last_release_ = std::chrono::steady_clock::now();
  ++counts().passes;
}

void StreamedStore::accept_drafts(uint32_t rows) {
  const std::lock_guard lock(mutex_);
  cache_->accept_drafts(rows);
}

MissCounts StreamedStore::miss_counts() const {
  const std::lock_guard lock(mutex_);
  MissCounts counts;
  for (const CacheCounts& phase : cache_->all_counts()) {
    counts.misses += phase.missed;
    counts.draft_misses += phase.draft_misses;
    counts.waiting_seconds += phase.waiting_seconds;
  }
  return counts;
}

Result<std::unique_ptr<ExpertRequest>> StreamedStore::request(LayerId layer, std::vector<ExpertDemand> demands) {
  std::unique_lock lock(mutex_);
  DSPACK_CHECK(request_ == nullptr, "one request at a time");
  cache_->begin_layer(layer, demands);
  std::vector<uint64_t> stale;  // prefetches of experts that are not near
  for (const auto& any : cache_->slots()) {
    const auto& slot = static_cast<const Slot&>(*any);
    if (slot.is_loading && slot.urgency == Urgency::prefetch && !cache_->is_near(slot.key))
      stale.push_back(slot.number);
  }
  lock.unlock();
  for (const uint64_t slot : stale)
    transfers_->drop(slot);  // without the lock: dropped jobs end in `loaded`
  auto made = std::make_unique<Request>(*this, layer, std::move(demands));
  lock.lock();
  request_ = made.get();
  const auto begun = made->begin();
  start_prefetches();
  lock.unlock();
  if (!begun) return begun.error();
  return std::unique_ptr<ExpertRequest>(std::move(made));
}

void StreamedStore::announce(LayerId layer, std::span<const ExpertDemand> demands) {
  const std::lock_guard lock(mutex_);
  if (options_.prefetch == PrefetchMode::off || !cache_->has_layer(layer)) return;
  cache_->announce(layer, demands);
  start_prefetches();
}

void StreamedStore::expect(LayerId layer, std::span<const ExpertId> experts) {
  const std::lock_guard lock(mutex_);
  if (!cache_->is_prefetching()) return;
  cache_->expect(layer, experts);
  start_prefetches();
}

void StreamedStore::start_prefetches() {
  if (request_ != nullptr && request_->has_missing()) return;
  while (start_announced()) {
  }
  while (loading(Urgency::demand) == 0 && loading(Urgency::prefetch) < kMaxPrefetches) {
    const auto key = cache_->next_expected();
    if (!key || !start_prefetch(*key)) return;
  }
}

// False: nothing is left, enough is read ahead, or no slot may be evicted. Failures are no errors, as below.
bool StreamedStore::start_announced() {
  const auto use = cache_->next_announced();
  if (!use || cache_->announced_ahead() >= window(use->key.layer)) return false;
  const auto slot = start_miss(*use, Urgency::prefetch);
  return slot && *slot != nullptr;
}

// False: no slot may be evicted. A failure is no error: the layer that wants the expert will meet it again.
bool StreamedStore::start_prefetch(ExpertKey key) {
  if (!cache_->has_layer(key.layer) || find(key) != nullptr) return true;
  // Bytes across a network may cost money: only --dev prefetch=on reads guesses there.
  if (options_.prefetch == PrefetchMode::automatic && tier_.medium_of(key) == Medium::network) return true;
  const auto taken = cache_->insert_prefetch(key);
  if (!taken || *taken == nullptr) return false;
  Slot& slot = static_cast<Slot&>(**taken);
  slot.may_fail = slot.is_guess = true;
  slot.is_second_try = false;
  if (!begin_reading(slot, Urgency::prefetch)) {
    cache_->clear(slot);
    return true;
  }
  ++cache_->prefetch_counts().prefetches;
  return true;
}

void StreamedStore::count_hit(Slot& slot, const ExpertUse& use) {
  cache_->hit(slot, use, !slot.is_ready);
  if (!slot.is_loading) return;
  transfers_->hurry(slot.number);
  --loading(slot.urgency);
  slot.urgency = Urgency::demand;
  ++loading(slot.urgency);
}

FetchOutlook StreamedStore::begin_prompt(const PromptShape& prompt) {
  const std::lock_guard lock(mutex_);
  meter_.begin_prompt();
  const auto experts = static_cast<double>(tier_.checkpoint().experts().size());
  return reading_.prompt = fetch_outlook(tier_.checkpoint(), prompt,
                                         {.cached_share = experts > 0 ? static_cast<double>(stats_.slots) / experts : 0,
                                          .is_in_memory = [this](ExpertKey key) { return find(key) != nullptr; },
                                          .medium_of = [this](ExpertKey key) { return tier_.medium_of(key); }});
}

// How many experts a prefill's layer reads ahead of computing, and a pass ahead of its layers: enough for the transfers
// never to pause, and at least an eighth of the slots, so that expensive experts overlap with cheap ones. A prefill's
// layer could use all slots, but would then evict what decoding needs of other layers.
size_t StreamedStore::window(LayerId layer) const {
  const ExpertCache::Pool& pool = cache_->pool_of(layer);
  const auto& experts = tier_.checkpoint().experts();
  // Judges by one of the layer's experts; if a layer's files are in two places, others may be read differently.
  const auto first = experts.lower_bound({layer, ExpertId(0)});
  const uint32_t file = first == experts.end() ? 0 : tier_.checkpoint().tensors()[first->second.front()].file;
  const uint64_t in_flight = ceil_div(tier_.depth() * tier_.block_bytes(file), pool.layout.slot_bytes);
  const uint64_t busy = 2 * std::clamp<uint64_t>(in_flight, 2, tier_.depth());
  return std::max(busy, pool.limit / 8);
}

Result<StreamedStore::Slot*> StreamedStore::start_miss(const ExpertUse& use, Urgency urgency) {
  const bool is_ahead = urgency == Urgency::prefetch;
  TRY_ASSIGN(CacheSlot * taken,
             is_ahead ? cache_->insert_announced(use) : cache_->insert(use, ExpertCache::Evict::any));
  if (taken == nullptr) return static_cast<Slot*>(nullptr);
  Slot& slot = static_cast<Slot&>(*taken);
  slot.may_fail = is_ahead;
  slot.is_guess = slot.is_second_try = false;
  if (const auto begun = begin_reading(slot, urgency); !begun) {
    cache_->clear(slot);
    return explained(begun.error(), use.key);
  }
  cache_->count_miss(use);
  ++counts().misses[static_cast<size_t>(slot.medium)];
  counts().bytes[static_cast<size_t>(slot.medium)] += slot.bytes;
  return &slot;
}

Result<void> StreamedStore::begin_reading(Slot& slot, Urgency urgency) {
  auto plan = plans_.find(slot.key);
  if (plan == plans_.end()) {
    const uint64_t grid = options_.in_place ? kMapGrid : kPageBytes;
    TRY_ASSIGN(SlotPlan made, plan_slot(tier_.checkpoint(), slot.key, options_.shape, grid));
    plan = plans_.emplace(slot.key, std::move(made)).first;
  }
  slot.plan = &plan->second;
  // In place, the slot's own memory is only a range of addresses, to which files are mapped.
  if (options_.in_place) {
    TRY_ASSIGN(slot.memory, kernels::make_mapped_memory(slot.plan->slot_bytes));
  }
  DSPACK_CHECK(slot.plan->slot_bytes <= slot.memory_bytes().size(), "an expert larger than its slot");
  TRY(meter_.begin(slot.plan->stored_bytes));
  slot.bytes = slot.plan->stored_bytes;
  slot.is_loading = true;
  slot.error.reset();
  slot.urgency = urgency;
  ++loading(urgency);
  slot.medium = tier_.medium_of(slot.key);
  if (urgency == Urgency::demand) reading_.awaited_from = slot.medium;
  if (stats_.read_experts.insert(slot.key).second) {
    auto& files = stats_.opened_files[slot.key.layer];
    for (const SlotPlan::PlacedExtent& part : slot.plan->parts)
      files.insert(tier_.checkpoint().files()[part.extent.file].path);
  }
  start_load(tier_, *transfers_,
             {.key = slot.key,
              .plan = slot.plan,
              .slot = slot.memory_bytes(),
              .urgency = urgency,
              .group = slot.number,
              .verify = tier_.must_verify(slot.key),
              .in_place = options_.in_place,
              .done = [this, &slot](const LoadOutcome& outcome) { loaded(slot, outcome); }});
  return {};
}

void StreamedStore::loaded(Slot& slot, const LoadOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  --loading(slot.urgency);
  slot.is_loading = false;
  meter_.end(slot.bytes, outcome.bytes_read);
  reading_.add(slot.medium, outcome.bytes_read);
  if (slot.is_guess) cache_->prefetch_counts().prefetched_bytes += outcome.bytes_read;
  if (!read_again(slot, outcome)) settle(slot, outcome);
  start_prefetches();
  has_changed_ = true;
  changed_.notify_all();
}

// Data that a network corrupts is often intact the second time, and a failed prefetch may not have been due.
bool StreamedStore::read_again(Slot& slot, const LoadOutcome& outcome) {
  if (outcome.result) return false;
  // A cache drops the bytes that it has corrupted, whether the expert is wanted yet or not.
  const bool is_spoilt = outcome.result.error().kind == ErrorKind::corrupt && !slot.is_second_try &&
                         (slot.medium == Medium::network || tier_.distrust(slot.key));
  if (slot.urgency != Urgency::demand) return false;
  if (!is_spoilt && !slot.may_fail) return false;
  if (is_spoilt) slot.is_second_try = true;
  if (slot.is_guess) {  // it counted as useful when it was wanted, but was not
    CacheCounts& prefetch = cache_->prefetch_counts();
    --prefetch.useful_prefetches;
    prefetch.useful_bytes -= slot.bytes;
    prefetch.wasted_bytes += outcome.bytes_read;
  }
  slot.may_fail = slot.is_guess = false;
  if (!begin_reading(slot, Urgency::demand)) return false;
  counts().bytes[static_cast<size_t>(slot.medium)] += slot.bytes;
  return true;
}

void StreamedStore::settle(Slot& slot, const LoadOutcome& outcome) {
  if (outcome.result) {
    slot.weights = weights_in(*slot.plan, *slot.memory);
    slot.is_ready = true;
    slot.arrival = std::chrono::steady_clock::now();
    if (slot.medium == Medium::network) start_keeping(slot);
    return;
  }
  slot.error = outcome.result.error();
  if (slot.is_prefetch) cache_->prefetch_counts().wasted_bytes += outcome.bytes_read;
  if (slot.pins == 0) cache_->clear(slot);  // no request needs it any more
}

void StreamedStore::start_keeping(Slot& slot) {
  ++slot.pins;
  ++keeping_;
  transfers_->submit(Urgency::keep, slot.number, [this, &slot](const std::stop_token& stop) {
    const auto kept = guarded([&] { return tier_.keep(slot.key, tensors_in(*slot.plan, slot.memory_bytes()), stop); });
    const std::lock_guard lock(mutex_);
    if (!kept && !keep_error_) keep_error_ = explained(kept.error(), slot.key);
    unpin(slot);
    --keeping_;
    has_changed_ = true;
    changed_.notify_all();
  });
}

void StreamedStore::unpin(Slot& slot) {
  DSPACK_CHECK(slot.pins > 0, "a slot that nobody uses");
  if (--slot.pins == 0 && slot.error) cache_->clear(slot);
}

void StreamedStore::release(uint64_t slot) {
  const std::lock_guard lock(mutex_);
  last_release_ = std::chrono::steady_clock::now();
  unpin(static_cast<Slot&>(*cache_->slots()[slot]));
  if (request_ == nullptr) return;
  // A read that cannot start now is tried again, and its error reported, by the next call of `next`.
  if (const auto started = request_->start_missing(); !started) has_changed_ = true;
}

ExpertStoreStats StreamedStore::stats() const {
  const std::lock_guard lock(mutex_);
  ExpertStoreStats stats = stats_;
  for (size_t phase = 0; phase < kPhases; ++phase)
    static_cast<CacheCounts&>(stats.phases[phase]) = cache_->all_counts()[phase];
  stats.prefetch_switched_off = cache_->governor().has_switched_off();
  stats.resident_experts = cache_->used();
  for (const ExpertCache::Pool& pool : cache_->pools())
    stats.resident_bytes += pool.made * pool.layout.slot_bytes;
  return stats;
}

// For a cache in faster memory: which experts it has and uses, and slots for experts that leave it.

StreamedStore::Slot* StreamedStore::find(ExpertKey key) const {
  return static_cast<Slot*>(cache_->find(key));
}

void StreamedStore::set_copied(ExpertKey key, bool is_copied) {
  const std::lock_guard lock(mutex_);
  cache_->set_spare(key, is_copied);
}

std::optional<ExpertLease> StreamedStore::lease_if_ready(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  Slot* const slot = find(key);
  if (slot == nullptr || !slot->is_ready) return std::nullopt;
  ++slot->pins;
  return ExpertLease(0, slot->weights, this, slot->number);
}

void StreamedStore::used_elsewhere(LayerId layer, const ExpertDemand& demand) {
  const std::lock_guard lock(mutex_);
  cache_->used_elsewhere(cache_->use_of(layer, demand));
}

// The plan is known, since the expert was read here before. While it comes it counts as being read.
std::optional<ExpertLease> StreamedStore::take_back(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  const auto plan = plans_.find(key);
  if (options_.in_place || plan == plans_.end() || find(key) != nullptr) return std::nullopt;
  const auto taken = cache_->insert_returned(key);
  if (!taken || *taken == nullptr) return std::nullopt;
  Slot& slot = static_cast<Slot&>(**taken);
  slot.plan = &plan->second;
  slot.weights = weights_in(*slot.plan, *slot.memory);
  slot.error.reset();
  slot.is_loading = true;
  ++slot.pins;
  return ExpertLease(0, slot.weights, this, slot.number);
}

void StreamedStore::settle_return(ExpertKey key, bool is_there) {
  const std::lock_guard lock(mutex_);
  Slot* const slot = find(key);
  DSPACK_CHECK(slot != nullptr && slot->is_loading, "an expert that was not on its way back");
  slot->is_loading = false;
  slot->is_ready = is_there;
  slot->arrival = std::chrono::steady_clock::now();
  if (!is_there) slot->error = Error{ErrorKind::io, "the device has not given it back"};
}

}  // namespace dspack::runtime
