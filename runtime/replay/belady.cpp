#include "runtime/replay/belady.h"

#include <limits>

namespace dspack::runtime {

namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

}  // namespace

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
