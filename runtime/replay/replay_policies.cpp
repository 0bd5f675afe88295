#include "runtime/replay/replay_policies.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/experts/policy/lru.h"

namespace dspack::runtime {
namespace {

// In passes. Published ageing has this order of magnitude: hot experts of a text change over hundreds of tokens.
constexpr double kHalfLife = 64;

// 2^a + 2^b, as a power of 2.
double add(double a, double b) {
  const double high = std::max(a, b);
  return std::isinf(high) ? high : high + std::log2(1 + std::exp2(std::min(a, b) - high));
}

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

}  // namespace

double& LfuPolicy::count_of(ExpertKey key) {
  return counts_.try_emplace(packed(key), -std::numeric_limits<double>::infinity()).first->second;
}

void LfuPolicy::count(const ExpertUse& use) {
  if (use.is_draft) return;
  const double at = static_cast<double>(use.pass) - use.last_row;
  const double rows = std::min<double>(use.rows, kHalfLife);
  double& sum = count_of(use.key);
  sum = add(sum, at / kHalfLife + std::log2(rows));
}

void LfuPolicy::hit(const ExpertUse& use) {
  in_slots_.erase({count_of(use.key), use.key});
  count(use);
  in_slots_.insert({count_of(use.key), use.key});
}

void LfuPolicy::inserted(const ExpertUse& use) {
  count(use);
  in_slots_.insert({count_of(use.key), use.key});
}

void LfuPolicy::prefetched(ExpertKey key, uint64_t pass) {
  inserted({.key = key, .pass = pass});
}

void LfuPolicy::removed(ExpertKey key) {
  in_slots_.erase({count_of(key), key});
}

std::optional<ExpertKey> LfuPolicy::victim(const std::function<bool(ExpertKey)>& may_go) {
  for (const auto& [sum, key] : in_slots_) {
    if (may_go(key)) return key;
  }
  return std::nullopt;
}

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
  // For all of V3's experts the walk takes 600 steps on average, which is microseconds; the read that follows takes
  // milliseconds.
  std::optional<ExpertKey> last;
  for (const RecencyOrder::Entry& entry : order) {
    if (!may_go(entry.key)) continue;
    last = entry.key;
    if (skip-- == 0) break;
  }
  return last;
}

namespace {

constexpr uint64_t kSmallShare = 10;  // one tenth of the slots
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
  // Each round takes a use from every expert that may go, so the last round finds a victim if there is one.
  for (uint32_t round = 0; round <= kMostUses; ++round) {
    const uint64_t first_moved = arrivals_;  // experts moved to the end in this round are not visited again
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

std::span<const NamedPolicy> replay_policies() {
  static const std::vector<NamedPolicy> all = [] {
    const auto run = eviction_policies();
    std::vector<NamedPolicy> policies(run.begin(), run.end());
    const std::array<NamedPolicy, 3> others = {{
        {"lfu", "used least, with ageing",
         [](uint64_t, uint64_t) -> std::unique_ptr<EvictionPolicy> { return std::make_unique<LfuPolicy>(); }},
        {"random-old", "one of the oldest 8 %, at random",
         [](uint64_t slots, uint64_t seed) -> std::unique_ptr<EvictionPolicy> {
           return std::make_unique<RandomOldPolicy>(slots, seed);
         }},
        {"s3-fifo", "arrived first, unless used again",
         [](uint64_t slots, uint64_t) -> std::unique_ptr<EvictionPolicy> {
           return std::make_unique<S3FifoPolicy>(slots);
         }},
    }};
    policies.insert(policies.begin() + 1, others.begin(), others.end());
    return policies;
  }();
  return all;
}

BeladyPolicy::BeladyPolicy(const Workload& workload) {
  for (size_t i = 0; i < workload.steps().size(); ++i) {
    const Workload::Step& step = workload.steps()[i];
    if (step.accepted) continue;
    for (const ExpertDemand& demand : workload.demands(step))
      futures_[packed({step.layer, demand.expert})].uses.emplace_back(i, step.pass);
  }
}

uint64_t BeladyPolicy::Future::next() const {
  return past < uses.size() ? uses[past].first : kNever;
}

// An accepted draft is reported a second time, in the same pass, which is not a separate use.
BeladyPolicy::Future& BeladyPolicy::advance(const ExpertUse& use) {
  Future& future = futures_.at(packed(use.key));
  if (future.past < future.uses.size() && future.uses[future.past].second == use.pass) ++future.past;
  return future;
}

void BeladyPolicy::hit(const ExpertUse& use) {
  in_slots_.erase({futures_.at(packed(use.key)).next(), use.key});
  in_slots_.insert({advance(use).next(), use.key});
}

void BeladyPolicy::inserted(const ExpertUse& use) {
  in_slots_.insert({advance(use).next(), use.key});
}

void BeladyPolicy::prefetched(ExpertKey key, uint64_t /*pass*/) {
  in_slots_.insert({futures_[packed(key)].next(), key});
}

void BeladyPolicy::removed(ExpertKey key) {
  in_slots_.erase({futures_.at(packed(key)).next(), key});
}

void BeladyPolicy::hold(ExpertKey key) {
  in_slots_.hold({futures_.at(packed(key)).next(), key});
}

std::optional<ExpertKey> BeladyPolicy::victim(const std::function<bool(ExpertKey)>& may_go) {
  for (const auto& [step, key] : in_slots_) {
    if (may_go(key)) return key;
  }
  return std::nullopt;
}

}  // namespace dspack::runtime
