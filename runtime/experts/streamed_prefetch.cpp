// The part of the streamed store that reads on the chance: what the next layer is expected to want, while nothing is
// wanted at once. A prefetch takes no slot whose expert this layer or the next one may need, and what turns out not to
// be wanted is given up: of its blocks, those that have not begun are not read.
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

// While slots are left, an expert is read once whatever comes, and only those that are wanted should be.
bool StreamedStore::is_prefetching() const {
  return phase() == Phase::decode && governor_.is_on() && (has_evicted_ || options_.prefetch == PrefetchMode::on);
}

bool StreamedStore::wants_forecast() const {
  const std::lock_guard lock(mutex_);
  return is_prefetching();
}

void StreamedStore::expect(LayerId layer, std::span<const ExpertId> experts) {
  const std::lock_guard lock(mutex_);
  if (!is_prefetching()) return;
  forecast_.expect(layer, experts);
  start_prefetches();
}

// False: no slot may go. What fails here is no error: the layer that wants the expert will meet it again.
bool StreamedStore::start_prefetch(ExpertKey key) {
  const auto pool = pool_of(key);
  if (!pool || (*pool)->find(key) != nullptr) return true;
  // Bytes across a network are paid for: there only who asks for it gets guesses.
  if (options_.prefetch == PrefetchMode::automatic && storage_.tier_of(key) == StorageTier::network) return true;
  const auto slot = (*pool)->take(
      key, slots_.size(), [this](const Slot& left) { count_eviction(left); },
      [this](ExpertKey candidate) { return forecast_.is_near(candidate); });
  if (!slot || *slot == nullptr) return false;
  if ((*slot)->number == slots_.size()) slots_.push_back(*slot);
  (*pool)->policy().prefetched(key, uses_.number());
  (*slot)->is_prefetch = true;
  (*slot)->may_fail = true;
  if (!begin_reading(**slot, Urgency::prefetch)) {
    (*pool)->clear(**slot);
    return true;
  }
  ++prefetch_counts().prefetches;
  return true;
}

void StreamedStore::end_forecast(LayerId layer, std::span<const ExpertDemand> demands) {
  std::vector<uint64_t> stale;
  {
    const std::lock_guard lock(mutex_);
    ++course_.layers;
    forecast_.resolve(layer, demands, counts());
    for (const Slot* slot : slots_) {
      if (slot->state == Slot::State::loading && slot->urgency == Urgency::prefetch && !forecast_.is_near(slot->key)) {
        stale.push_back(slot->number);
      }
    }
  }
  for (const uint64_t slot : stale)
    transfers_->drop(slot);  // without the lock: it ends in `loaded`
}

// A decode pass through the layers is what the governor judges; one layer alone is an MTP module's.
void StreamedStore::end_pass() {
  const PhaseStats& now = prefetch_counts();
  const PhaseStats& before = course_.before;
  if (phase() == Phase::decode && course_.layers > 1 && has_evicted_) {
    const uint64_t misses = now.all_misses() - before.all_misses();
    governor_.record({.seconds = std::chrono::duration<double>(course_.end - course_.start).count(),
                      .experts = misses + now.hits + now.late - before.hits - before.late,
                      .misses = misses,
                      .useful_bytes = now.useful_bytes - before.useful_bytes,
                      .wasted_bytes = now.wasted_bytes - before.wasted_bytes});
  }
  const auto start = std::chrono::steady_clock::now();
  course_ = {.start = start, .end = start, .layers = 0, .before = now};
}

}  // namespace dspack::runtime
