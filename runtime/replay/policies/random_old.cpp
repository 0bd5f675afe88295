#include "runtime/replay/policies/random_old.h"

#include <algorithm>

namespace dspack::runtime {

namespace {

constexpr double kOldestShare = 0.08;

}  // namespace

RandomOldPolicy::RandomOldPolicy(uint64_t slots, uint64_t seed)
    : candidates_(std::max<uint64_t>(1, static_cast<uint64_t>(kOldestShare * static_cast<double>(slots)))),
      random_(seed) {}

std::optional<ExpertKey> RandomOldPolicy::victim(const std::function<bool(ExpertKey)>& may_go) {
  const auto& order = recency_.order();
  uint64_t skip = random_() % candidates_;
  const size_t others = order.size() - order.held();
  if (is_told_ && others > 0) {
    const auto chosen = order.at(std::min<uint64_t>(skip, others - 1));
    if (may_go(chosen->key)) return chosen->key;
  }
  // The walk is of 600 steps on average for all of V3's experts, and of microseconds; the read that follows takes
  // milliseconds.
  std::optional<ExpertKey> last;
  for (const RecencyOrder::Entry& entry : order) {
    if (!may_go(entry.key)) continue;
    last = entry.key;
    if (skip-- == 0) break;
  }
  return last;
}

}  // namespace dspack::runtime
