#include "runtime/replay/policies/s3_fifo.h"

#include <algorithm>

#include "runtime/experts/policy/recency_order.h"

namespace dspack::runtime {

namespace {

constexpr uint64_t kSmallShare = 10;  // of the slots: a tenth
constexpr uint8_t kMostUses = 3;

}  // namespace

S3FifoPolicy::S3FifoPolicy(uint64_t slots) : slots_(slots), small_slots_(std::max<uint64_t>(1, slots / kSmallShare)) {}

void S3FifoPolicy::hit(const ExpertUse& use) {
  Place& place = places_.at(packed(use.key));
  if (!use.is_draft && place.uses < kMostUses) ++place.uses;
}

void S3FifoPolicy::inserted(const ExpertUse& use) {
  arrive(use.key);
}

void S3FifoPolicy::prefetched(ExpertKey key, uint64_t /*pass*/) {
  arrive(key);
}

void S3FifoPolicy::arrive(ExpertKey key) {
  const auto ghost = remembered_.find(packed(key));
  const bool is_small = ghost == remembered_.end();
  if (!is_small) {
    ghosts_.erase(ghost->second);
    remembered_.erase(ghost);
  }
  (is_small ? small_ : main_).insert({arrivals_, key});
  places_[packed(key)] = {.is_small = is_small, .arrival = arrivals_++};
}

void S3FifoPolicy::removed(ExpertKey key) {
  const auto at = places_.find(packed(key));
  if (at == places_.end()) return;
  const Place& place = at->second;
  (place.is_small ? small_ : main_).erase({place.arrival, key});
  if (place.is_small) {
    remembered_[packed(key)] = ghosts_.insert(ghosts_.end(), key);
  }
  places_.erase(at);
  if (ghosts_.size() <= slots_) return;
  remembered_.erase(packed(ghosts_.front()));
  ghosts_.pop_front();
}

std::optional<ExpertKey> S3FifoPolicy::victim(const std::function<bool(ExpertKey)>& may_go) {
  const bool small_first = small_.size() >= small_slots_ || main_.empty();
  auto key = small_first ? small_victim(may_go) : main_victim(may_go);
  if (!key) key = small_first ? main_victim(may_go) : small_victim(may_go);
  return key;
}

void S3FifoPolicy::hold(ExpertKey key) {
  const auto at = places_.find(packed(key));
  if (at != places_.end()) (at->second.is_small ? small_ : main_).hold({at->second.arrival, key});
}

void S3FifoPolicy::let_go() {
  small_.let_go();
  main_.let_go();
}

std::optional<ExpertKey> S3FifoPolicy::small_victim(const std::function<bool(ExpertKey)>& may_go) {
  for (auto at = small_.begin(); at != small_.end();) {
    const Arrival present = *at;
    ++at;
    if (!may_go(present.second)) continue;
    Place& place = places_.at(packed(present.second));
    if (place.uses == 0) return present.second;
    place = {.is_small = false, .arrival = arrivals_};
    main_.insert({arrivals_++, present.second});
    small_.erase(present);
  }
  return std::nullopt;
}

std::optional<ExpertKey> S3FifoPolicy::main_victim(const std::function<bool(ExpertKey)>& may_go) {
  // Each round takes a use from all that may go, so the last round finds one, if there is any.
  for (uint32_t round = 0; round <= kMostUses; ++round) {
    const uint64_t first_moved = arrivals_;  // moved to the end in this round: not to be passed again in it
    for (auto at = main_.begin(); at != main_.end() && at->first < first_moved;) {
      const Arrival present = *at;
      ++at;
      if (!may_go(present.second)) continue;
      Place& place = places_.at(packed(present.second));
      if (place.uses == 0) return present.second;
      --place.uses;
      main_.erase(present);
      place.arrival = arrivals_;
      main_.insert({arrivals_++, present.second});
      if (at == main_.end()) break;
    }
  }
  return std::nullopt;
}

}  // namespace dspack::runtime
