#include "runtime/experts/policy/lru.h"

#include <algorithm>

namespace dspack::runtime {

void LruPolicy::hit(const ExpertUse& use) {
  if (use.is_draft) return;
  order_.splice(order_.end(), order_, places_.at(use.key));
}

// What only drafts want is the first to leave again.
void LruPolicy::inserted(const ExpertUse& use) {
  places_[use.key] = order_.insert(use.is_draft ? order_.begin() : order_.end(), use.key);
}

void LruPolicy::prefetched(ExpertKey key, uint64_t /*pass*/) {
  places_[key] = order_.insert(order_.end(), key);
}

void LruPolicy::removed(ExpertKey key) {
  const auto place = places_.find(key);
  order_.erase(place->second);
  places_.erase(place);
}

std::optional<ExpertKey> LruPolicy::victim(const std::function<bool(ExpertKey)>& may_go) {
  const auto found = std::ranges::find_if(order_, may_go);
  if (found == order_.end()) return std::nullopt;
  return *found;
}

}  // namespace dspack::runtime
