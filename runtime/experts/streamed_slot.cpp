#include "runtime/experts/streamed_slot.h"

namespace dspack::runtime {

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
