#include "runtime/experts/streamed_store.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "format/base/checked.h"

#include "format/base/guarded.h"
#include "runtime/experts/slot_layouts.h"

namespace dspack::runtime {

namespace {

// One is read while the slot of the next is found; more would only delay what comes to be wanted.
constexpr uint64_t kMostPrefetches = 2;

}  // namespace

// Demands that have a slot are pinned until they are taken; those that have none wait for one.
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
      TRY_ASSIGN(SlotPool * pool, store_.pool_of(key));
      Slot* const slot = pool->find(key);
      if (slot == nullptr) {
        missing_.push_back(i);
        continue;
      }
      store_.count_hit(*slot, store_.uses_.use_of(layer_, demands_[i]));
      ++slot->pins;
      const bool is_ready = slot->state == Slot::State::ready;
      (is_ready ? ready_ : coming_).push_back({.index = i, .slot = slot, .was_missing = !is_ready});
    }
    if (store_.phase() == Phase::prefill) order_missing();
    return start_missing();
  }

  // With the lock held: as many of the missing as there are slots for, and in a prefill as the window allows.
  Result<void> start_missing() {
    while (!missing_.empty() && (store_.phase() == Phase::decode || ahead() < store_.prefill_window(layer_))) {
      auto slot = store_.start_miss(store_.uses_.use_of(layer_, demands_[missing_.front()]));
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
      store_.counts().waiting_seconds +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

  // With the lock held: whether demands wait for a slot.
  [[nodiscard]] bool is_starved() const { return !missing_.empty(); }

  bool is_ready() override {
    const std::lock_guard lock(store_.mutex_);
    return !ready_.empty() ||
           std::ranges::any_of(coming_, [](const Pinned& p) { return p.slot->state != Slot::State::loading; });
  }

 private:
  struct Pinned {
    size_t index = 0;  // of the demand
    Slot* slot = nullptr;
    bool was_missing = false;
  };

  // What only a prompt's early tokens want comes first: it is the first to leave again, and makes room for the rest.
  void order_missing() {
    std::ranges::stable_sort(
        missing_, {}, [this](size_t index) { return std::pair(demands_[index].last_row, demands_[index].rows); });
  }

  // Missing experts that are on their way or wait to be computed.
  [[nodiscard]] size_t ahead() const {
    return coming_.size() + static_cast<size_t>(std::ranges::count_if(ready_, &Pinned::was_missing));
  }

  // Moves what has arrived to `ready_`, and lets more come.
  Result<void> collect() {
    for (auto next = coming_.begin(); next != coming_.end();) {
      if (next->slot->state == Slot::State::failed) return failure(next);
      if (next->slot->state == Slot::State::ready) {
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

StreamedStore::StreamedStore(kernels::Device& device, WeightStorage& storage, const StreamedStoreOptions& options)
    : device_(device),
      storage_(storage),
      options_(options),
      governor_(options.prefetch),
      transfers_(std::make_unique<TransferPool>(storage.depth())) {}

Result<std::unique_ptr<StreamedStore>> StreamedStore::make(kernels::Device& device, WeightStorage& storage,
                                                           const StreamedStoreOptions& options) {
  std::unique_ptr<StreamedStore> store(new StreamedStore(device, storage, options));
  TRY(store->make_pools());
  return store;
}

StreamedStore::~StreamedStore() {
  std::unique_lock lock(mutex_);
  forecast_.clear();
  changed_.wait(lock, [this] { return keeping_ == 0; });
}

Result<void> StreamedStore::make_pools() {
  TRY_ASSIGN(const std::vector<SlotLayout> layouts,
             slot_layouts(storage_.checkpoint(), options_.shape, options_.layers));
  const std::vector<uint64_t> limits = share_slots(layouts, options_.slots, options_.least_slots);
  for (size_t i = 0; i < layouts.size(); ++i) {
    const SlotMemory of_device = [this](uint64_t bytes) { return device_.allocate(bytes); };
    pools_.push_back(std::make_unique<SlotPool>(options_.memory ? options_.memory : of_device, layouts[i].slot_bytes,
                                                limits[i], options_.policy(limits[i], options_.seed + i)));
    for (const LayerId layer : layouts[i].layers)
      pool_of_layer_[layer] = pools_.back().get();
    stats_.slots += limits[i];
    stats_.slot_bytes += limits[i] * layouts[i].slot_bytes;
  }
  stats_.prefetch = to_string(options_.prefetch);
  if (!pools_.empty()) stats_.policy = pools_.front()->policy().name();
  return {};
}

Result<SlotPool*> StreamedStore::pool_of(ExpertKey key) {
  const auto found = pool_of_layer_.find(key.layer);
  if (found != pool_of_layer_.end()) return found->second;
  // No expert of the layer can be used; what is wrong with this one?
  const auto plan = plan_slot(storage_.checkpoint(), key, options_.shape);
  if (!plan) return explained(plan.error(), key);
  return explained({ErrorKind::invalid, "the layer is not one of the run's"}, key);
}

void StreamedStore::begin_pass(const ExpertPass& pass) {
  const std::lock_guard lock(mutex_);
  end_pass();
  uses_.begin_pass(pass);
  ++counts().passes;
}

void StreamedStore::accept_drafts(uint32_t rows) {
  const std::lock_guard lock(mutex_);
  for (const ExpertUse& use : uses_.accept_drafts(rows)) {
    SlotPool& pool = *pool_of_layer_.at(use.key.layer);
    if (pool.find(use.key) != nullptr) pool.policy().hit(use);
  }
}

MissCounts StreamedStore::miss_counts() const {
  const std::lock_guard lock(mutex_);
  MissCounts counts;
  for (const PhaseStats& phase : stats_.phases) {
    counts.misses += phase.all_misses();
    counts.draft_misses += phase.draft_misses;
    counts.waiting_seconds += phase.waiting_seconds;
  }
  return counts;
}

void StreamedStore::set_copied(ExpertKey key, bool is_copied) {
  const std::lock_guard lock(mutex_);
  const auto pool = pool_of_layer_.find(key.layer);
  if (pool == pool_of_layer_.end()) return;
  if (Slot* const slot = pool->second->find(key)) pool->second->set_spare(*slot, is_copied);
}

std::optional<ExpertLease> StreamedStore::lease_if_ready(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  const auto pool = pool_of_layer_.find(key.layer);
  if (pool == pool_of_layer_.end()) return std::nullopt;
  Slot* const slot = pool->second->find(key);
  if (slot == nullptr || slot->state != Slot::State::ready) return std::nullopt;
  ++slot->pins;
  return ExpertLease(0, slot->weights, this, slot->number);
}

Result<std::unique_ptr<ExpertRequest>> StreamedStore::request(LayerId layer, std::vector<ExpertDemand> demands) {
  DSPACK_CHECK(request_ == nullptr, "one request at a time");
  end_forecast(layer, demands);
  auto made = std::make_unique<Request>(*this, layer, demands);
  Result<void> begun;
  {
    const std::lock_guard lock(mutex_);
    request_ = made.get();
    uses_.remember_drafts(layer, demands);
    begun = made->begin();
  }
  if (!begun) return begun.error();
  return std::unique_ptr<ExpertRequest>(std::move(made));
}

void StreamedStore::start_prefetches() {
  const bool is_starved = request_ != nullptr && request_->is_starved();
  while (loading(Urgency::demand) == 0 && loading(Urgency::prefetch) < kMostPrefetches && !is_starved) {
    const auto key = forecast_.next();
    if (!key || !start_prefetch(*key)) return;
  }
}

void StreamedStore::count_hit(Slot& slot, const ExpertUse& use) {
  if (slot.state == Slot::State::ready) {
    ++counts().hits;
  } else {
    ++counts().late;
    transfers_->hurry(slot.number);
    --loading(slot.urgency);
    slot.urgency = Urgency::demand;
    ++loading(slot.urgency);
  }
  if (slot.is_prefetch) {
    slot.is_prefetch = false;
    ++prefetch_counts().useful_prefetches;
    prefetch_counts().useful_bytes += slot.plan.stored_bytes;
  }
  pool_of_layer_.at(use.key.layer)->policy().hit(use);
}

void StreamedStore::count_eviction(const Slot& slot) {
  ++counts().evictions;
  has_evicted_ = true;
  if (slot.is_prefetch) prefetch_counts().wasted_bytes += slot.plan.stored_bytes;
}

// Enough experts for the transfers never to pause, and an eighth of the slots, so that dear experts overlap with cheap
// ones. A prefill's layer could use all slots at once, but then it would push out what decoding needs of other layers.
size_t StreamedStore::prefill_window(LayerId layer) const {
  const SlotPool& pool = *pool_of_layer_.at(layer);
  const auto& experts = storage_.checkpoint().experts();
  // How one of the layer's experts is read; where they lie in two places, others may be read otherwise.
  const auto first = experts.lower_bound({layer, ExpertId(0)});
  const uint32_t file = first == experts.end() ? 0 : storage_.checkpoint().tensors()[first->second.front()].file;
  const uint64_t in_flight = ceil_div(storage_.depth() * storage_.block_bytes(file), pool.slot_bytes());
  const uint64_t busy = 2 * std::clamp<uint64_t>(in_flight, 2, storage_.depth());
  return std::max(busy, pool.limit() / 8);
}

Result<Slot*> StreamedStore::start_miss(const ExpertUse& use) {
  SlotPool& pool = *pool_of_layer_.at(use.key.layer);
  TRY_ASSIGN(Slot * slot, pool.take(use.key, slots_.size(), [this](const Slot& left) { count_eviction(left); }));
  if (slot == nullptr) return slot;
  if (slot->number == slots_.size()) slots_.push_back(slot);
  pool.policy().inserted(use);
  if (const auto begun = begin_reading(*slot, Urgency::demand); !begun) {
    pool.clear(*slot);
    return explained(begun.error(), use.key);
  }
  ++counts().misses[static_cast<size_t>(slot->tier)];
  counts().bytes[static_cast<size_t>(slot->tier)] += slot->plan.stored_bytes;
  if (use.is_draft) ++counts().draft_misses;
  return slot;
}

Result<void> StreamedStore::begin_reading(Slot& slot, Urgency urgency) {
  TRY_ASSIGN(slot.plan, plan_slot(storage_.checkpoint(), slot.key, options_.shape));
  DSPACK_CHECK(slot.plan.slot_bytes <= slot.bytes().size(), "an expert larger than its slot");
  TRY(count_reading(slot));
  slot.state = Slot::State::loading;
  slot.urgency = urgency;
  ++loading(urgency);
  slot.tier = storage_.tier_of(slot.key);
  stats_.read_experts.insert(slot.key);
  auto& files = stats_.opened_files[slot.key.layer];
  for (const SlotPlan::Part& part : slot.plan.parts)
    files.insert(storage_.checkpoint().files()[part.extent.file].path);
  start_load(storage_, *transfers_,
             {.key = slot.key,
              .plan = slot.plan,
              .slot = slot.bytes(),
              .urgency = urgency,
              .group = slot.number,
              .verify = storage_.must_verify(slot.key),
              .done = [this, &slot](const LoadOutcome& outcome) { loaded(slot, outcome); }});
  return {};
}

void StreamedStore::loaded(Slot& slot, const LoadOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  --loading(slot.urgency);
  count_read(slot, outcome.bytes_read);
  if (slot.may_fail) prefetch_counts().prefetched_bytes += outcome.bytes_read;
  if (!read_again(slot, outcome)) settle(slot, outcome);
  start_prefetches();
  has_changed_ = true;
  changed_.notify_all();
}

// What a network spoils on the way is often whole the second time, and what failed on the chance may not have been due.
bool StreamedStore::read_again(Slot& slot, const LoadOutcome& outcome) {
  if (outcome.result) return false;
  // A cache gives up what it has spoilt, whether the expert is wanted yet or not.
  const bool is_spoilt = outcome.result.error().kind == ErrorKind::corrupt && !slot.is_second_try &&
                         (slot.tier == StorageTier::network || storage_.distrust(slot.key));
  if (slot.urgency != Urgency::demand) return false;
  if (!is_spoilt && !slot.may_fail) return false;
  if (is_spoilt) slot.is_second_try = true;
  if (slot.may_fail) {  // it counted as useful when it was wanted, and was not
    --prefetch_counts().useful_prefetches;
    prefetch_counts().useful_bytes -= slot.plan.stored_bytes;
    prefetch_counts().wasted_bytes += outcome.bytes_read;
  }
  slot.may_fail = false;
  if (!begin_reading(slot, Urgency::demand)) return false;
  counts().bytes[static_cast<size_t>(slot.tier)] += slot.plan.stored_bytes;
  return true;
}

void StreamedStore::settle(Slot& slot, const LoadOutcome& outcome) {
  if (outcome.result) {
    slot.weights = weights_in(slot.plan, *slot.memory);
    slot.state = Slot::State::ready;
    slot.arrival = std::chrono::steady_clock::now();
    if (slot.tier == StorageTier::network) start_keeping(slot);
    return;
  }
  slot.state = Slot::State::failed;
  slot.error = outcome.result.error();
  if (slot.is_prefetch) prefetch_counts().wasted_bytes += outcome.bytes_read;
  if (slot.pins == 0) pool_of_layer_.at(slot.key.layer)->clear(slot);  // nobody asks for it any more
}

void StreamedStore::start_keeping(Slot& slot) {
  ++slot.pins;
  ++keeping_;
  transfers_->submit(Urgency::keep, slot.number, [this, &slot](const std::stop_token& stop) {
    const auto kept = guarded([&] { return storage_.keep(slot.key, tensors_in(slot.plan, slot.bytes()), stop); });
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
  if (--slot.pins == 0 && slot.state == Slot::State::failed) pool_of_layer_.at(slot.key.layer)->clear(slot);
}

bool StreamedStore::is_idle() const {
  return keeping_ == 0 &&
         std::ranges::none_of(slots_, [](const Slot* slot) { return slot->state == Slot::State::loading; });
}

void StreamedStore::release(uint64_t slot) {
  const std::lock_guard lock(mutex_);
  course_.end = std::chrono::steady_clock::now();
  unpin(*slots_[slot]);
  if (request_ == nullptr) return;
  // What cannot be started now is tried again, and reported, by the next call of `next`.
  if (const auto started = request_->start_missing(); !started) has_changed_ = true;
}

ExpertStoreStats StreamedStore::stats() const {
  const std::lock_guard lock(mutex_);
  ExpertStoreStats stats = stats_;
  stats.prefetch_switched_off = governor_.has_switched_off();
  for (const auto& pool : pools_) {
    stats.resident_experts += pool->used();
    stats.resident_bytes += pool->slots().size() * pool->slot_bytes();
  }
  return stats;
}

}  // namespace dspack::runtime
