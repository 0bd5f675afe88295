#include "runtime/replay/simulate.h"

#include <limits>
#include <unordered_map>

namespace dspack::runtime {

namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// The experts in slots, and which of them are held.
class Slots {
 public:
  Slots(const RouteHeader& header, uint64_t slots, EvictionPolicy& policy) : free_(slots), policy_(policy) {
    size_t experts = 0;
    for (const RoutedLayerShape& shape : header.layers) {
      first_.emplace(shape.layer.value, experts);
      experts += shape.experts;
    }
    held_by_.resize(experts);
  }

  [[nodiscard]] bool has(ExpertKey key) const { return held_by_[index(key)] != 0; }
  void hold(ExpertKey key) { held_by_[index(key)] = wave_; }
  void begin_wave() {
    ++wave_;
    policy_.let_go();
  }
  void hit(const ExpertUse& use) {
    hold(use.key);
    policy_.hit(use);
    policy_.hold(use.key);
  }

  void insert(const ExpertUse& use) {
    if (free_ == 0) {
      const ExpertKey gone = victim();
      held_by_[index(gone)] = 0;
      policy_.removed(gone);
    } else {
      --free_;
    }
    hold(use.key);
    policy_.inserted(use);
    policy_.hold(use.key);
  }

 private:
  ExpertKey victim() {
    const auto may_go = [this](ExpertKey key) { return held_by_[index(key)] != wave_; };
    auto key = policy_.victim(may_go);
    if (!key) {
      begin_wave();  // this wave holds all slots: it is computed, and releases them
      key = policy_.victim(may_go);
    }
    DSPACK_CHECK(key && has(*key) && may_go(*key), "the policy names no expert that may go");
    return *key;
  }
  [[nodiscard]] size_t index(ExpertKey key) const { return first_.at(key.layer.value) + key.expert.value; }

  std::unordered_map<uint32_t, size_t> first_;  // index in held_by_, by layer
  std::vector<uint64_t> held_by_;               // the last wave to use it; 0: not in a slot
  uint64_t wave_ = 1;
  uint64_t free_;
  EvictionPolicy& policy_;
};

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

ReplayResult simulate(const Workload& workload, uint64_t slots, EvictionPolicy& policy) {
  DSPACK_CHECK(slots >= 1, "a store without slots");
  ReplayResult result;
  Slots held(workload.header(), slots, policy);
  std::vector<ExpertUse> missing;
  for (const Workload::Step& step : workload.steps()) {
    ReplayCounts& counts = result.phases[static_cast<size_t>(step.phase)];
    missing.clear();
    held.begin_wave();
    for (const ExpertDemand& demand : workload.demands(step)) {
      const ExpertUse use = Workload::use_of(step, demand);
      if (!held.has(use.key)) {
        missing.push_back(use);
        continue;
      }
      held.hit(use);
      if (!step.accepted) ++counts.hits;
    }
    if (step.accepted || missing.empty()) continue;
    for (const ExpertUse& use : missing)
      held.insert(use);
    const RoutedLayerShape& shape = *workload.header().find(step.layer);
    counts.misses += missing.size();
    counts.bytes += missing.size() * shape.expert_bytes;
    if (shape.is_by_token) counts.known_misses += missing.size();
  }
  return result;
}

}  // namespace dspack::runtime
