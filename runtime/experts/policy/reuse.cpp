#include "runtime/experts/policy/reuse.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dspack::runtime {
namespace {

// Ages 1 to 6 have one step each, later ones 1.5 per doubling; frequencies have 1.5 per halving.
constexpr uint64_t kSingleAges = 6;
constexpr double kStepsPerDoubling = 1.5;
// The weight of the first guess, in examples, and the least weight of a new example, so that the table follows a text
// that changes.
constexpr uint32_t kGuessExamples = 20;
constexpr float kLeastStep = 0.002F;

uint32_t age_step(uint64_t age) {
  if (age <= kSingleAges) return static_cast<uint32_t>(age) - 1;
  const double later = std::log2(static_cast<double>(age) / kSingleAges) * kStepsPerDoubling;
  return std::min(ReuseValue::kAges - 1, static_cast<uint32_t>(kSingleAges + later));
}

uint32_t frequency_step(float frequency) {
  const double steps = ReuseValue::kFrequencies - 1 + std::log2(std::max(frequency, 1e-6F)) * kStepsPerDoubling;
  return static_cast<uint32_t>(std::clamp(static_cast<int>(steps), 0, static_cast<int>(ReuseValue::kFrequencies) - 1));
}

}  // namespace

// The first guess: the more recent the better, and then the more frequent.
ReuseValue::ReuseValue() {
  for (uint32_t age = 0; age < kAges; ++age) {
    for (uint32_t frequency = 0; frequency < kFrequencies; ++frequency) {
      const auto recent = static_cast<float>(kAges - age);
      values_[age * kFrequencies + frequency] = {
          .mean = 0.4F * (recent + static_cast<float>(frequency) / kFrequencies) / (kAges + 1),
          .examples = kGuessExamples};
    }
  }
}

ReuseValue::HistoryState ReuseValue::state_of(const UseHistory& history, uint64_t now) {
  return static_cast<HistoryState>(age_step(now - history.last) * kFrequencies + frequency_step(history.frequency));
}

void ReuseValue::learn(HistoryState state, bool used, HistoryState next) {
  const float outcome = used ? 1.0F : static_cast<float>(kDiscount) * values_[next].mean;
  Estimate& estimate = values_[state];
  if (static_cast<float>(estimate.examples) * kLeastStep < 1) ++estimate.examples;
  estimate.mean += (outcome - estimate.mean) / static_cast<float>(estimate.examples);
}

void ReusePolicy::hit(const ExpertUse& use) {
  note(use);
}

void ReusePolicy::inserted(const ExpertUse& use) {
  note(use);
  const Layer& layer = layer_of(use.key.layer);
  UseHistory history = expert_of(use.key).history;
  history.frequency += kFrequencyStep * (1 - history.frequency);
  history.last = layer.tokens;
  arrive(use.key, use.is_draft ? 0 : value_.value(ReuseValue::state_of(history, layer.tokens + 1)));
}

void ReusePolicy::prefetched(ExpertKey key, uint64_t /*pass*/) {
  arrive(key, 1);
}

void ReusePolicy::returned(ExpertKey key, uint64_t /*pass*/) {
  const UseHistory history = expert_of(key).history;
  arrive(key, history.last == 0 ? 0 : value_.value(ReuseValue::state_of(history, layer_of(key.layer).tokens + 1)));
}

void ReusePolicy::removed(ExpertKey key) {
  Expert& expert = expert_of(key);
  expert.in_slot = false;
  Layer& layer = layer_of(key.layer);
  if (!expert.is_ranked) layer.arrivals.erase(arrival_of(layer, key.expert.value));
}

void ReusePolicy::hold(ExpertKey key) {
  Expert& expert = expert_of(key);
  if (std::exchange(expert.is_held, true)) return;
  held_.push_back(key);
  Layer& layer = layer_of(key.layer);
  if (!expert.is_ranked) layer.arrivals.hold(arrival_of(layer, key.expert.value));
}

void ReusePolicy::let_go() {
  for (const ExpertKey key : held_) {
    Layer& layer = layer_of(key.layer);
    layer.passed = layer.gone;
    layer.arrivals.let_go();
    expert_of(key).is_held = false;
  }
  held_.clear();
}

// An arrival is in no ranking before its layer's visit ends.
void ReusePolicy::arrive(ExpertKey key, float value) {
  Expert& expert = expert_of(key);
  expert.value = value;
  expert.in_slot = true;
  expert.is_ranked = false;
  expert.arrival = ++arrivals_;
  Layer& layer = layer_of(key.layer);
  layer.arrivals.insert(arrival_of(layer, key.expert.value));
}

ReusePolicy::Arrival ReusePolicy::arrival_of(const Layer& layer, uint32_t expert) {
  return {.value = layer.experts[expert].value, .arrival = layer.experts[expert].arrival, .expert = expert};
}

std::optional<ExpertKey> ReusePolicy::victim(const std::function<bool(ExpertKey)>& may_go) {
  const auto present = visits_.present();
  const size_t at = present ? place_of(*present) : 0;
  std::optional<ExpertKey> least;
  float least_value = 0;
  const auto offer = [&](ExpertKey key, float value) {
    if (least && value >= least_value) return;
    least = key;
    least_value = value;
  };
  for (size_t ahead = 1; ahead <= layers_.size(); ++ahead) {
    Layer& layer = layers_[(at + ahead) % layers_.size()];
    if (const auto expert = layer_victim(layer, may_go)) {
      offer({layer.id, ExpertId(*expert)}, layer.experts[*expert].value * discounts_[ahead]);
    }
  }
  // Among equal arrivals, the earliest one goes.
  uint64_t first = 0;
  for (size_t ahead = 1; ahead <= layers_.size(); ++ahead) {
    const Layer& layer = layers_[(at + ahead) % layers_.size()];
    for (const Arrival& each : layer.arrivals) {
      const ExpertKey key{layer.id, ExpertId(each.expert)};
      if (!may_go(key)) continue;
      const float value = each.value * discounts_[ahead];
      const bool is_earlier = first != 0 && value == least_value && each.arrival < first;
      if (!least || value < least_value || is_earlier) {
        least = key;
        least_value = value;
        first = each.arrival;
      }
      break;
    }
  }
  return least;
}

std::optional<uint32_t> ReusePolicy::layer_victim(Layer& layer, const std::function<bool(ExpertKey)>& may_go) {
  const auto is_candidate = [&](uint32_t i) { return layer.experts[i].in_slot && layer.experts[i].is_ranked; };
  while (layer.gone < layer.ranking.size() && !is_candidate(layer.ranking[layer.gone]))
    ++layer.gone;
  layer.passed = std::max(layer.passed, layer.gone);
  while (layer.passed < layer.ranking.size() &&
         (layer.experts[layer.ranking[layer.passed]].is_held || !is_candidate(layer.ranking[layer.passed])))
    ++layer.passed;
  for (size_t i = layer.passed; i < layer.ranking.size(); ++i) {
    const uint32_t expert = layer.ranking[i];
    if (is_candidate(expert) && may_go({layer.id, ExpertId(expert)})) return expert;
  }
  return std::nullopt;
}

void ReusePolicy::note(const ExpertUse& use) {
  if (const auto ended = visits_.add(use)) end(*ended);
}

void ReusePolicy::end(const LayerVisit& visit) {
  Layer& layer = layer_of(visit.layer);
  if (visit.phase == Phase::prefill) {
    take_prefill(layer, visit);
  } else if (!visit.uses.empty()) {
    learn_token(layer, visit);
  }
  rank(layer);
}

void ReusePolicy::learn_token(Layer& layer, const LayerVisit& visit) {
  const uint64_t now = ++layer.tokens;
  std::vector<bool> known(layer.experts.size());
  for (size_t i = 0; i < known.size(); ++i)
    known[i] = layer.experts[i].history.last != 0;
  for (const ExpertUse& use : visit.uses)
    layer.experts[use.key.expert.value].history.last = now;
  for (size_t i = 0; i < known.size(); ++i) {
    Expert& expert = layer.experts[i];
    if (expert.history.last == 0) continue;
    const bool used = expert.history.last == now;
    expert.history.frequency += kFrequencyStep * ((used ? 1.0F : 0.0F) - expert.history.frequency);
    const ReuseValue::HistoryState next = ReuseValue::state_of(expert.history, now + 1);
    if (known[i]) value_.learn(expert.state, used, next);
    expert.state = next;
  }
}

// Assumes that a prefill's uses are spread evenly between its first row and the expert's last.
void ReusePolicy::take_prefill(Layer& layer, const LayerVisit& visit) {
  layer.tokens += visit.tokens;
  const float kept = std::exp(-kFrequencyStep * static_cast<float>(visit.tokens));
  for (Expert& expert : layer.experts)
    expert.history.frequency *= kept;
  for (const ExpertUse& use : visit.uses) {
    UseHistory& history = layer.experts[use.key.expert.value].history;
    history.last = layer.tokens - use.last_row;
    const float share = static_cast<float>(use.rows) / static_cast<float>(visit.tokens - use.last_row);
    history.frequency += share * (std::exp(-kFrequencyStep * static_cast<float>(use.last_row)) - kept);
  }
  for (Expert& expert : layer.experts) {
    if (expert.history.last != 0) expert.state = ReuseValue::state_of(expert.history, layer.tokens + 1);
  }
}

void ReusePolicy::rank(Layer& layer) {
  layer.ranking.clear();
  layer.gone = 0;
  layer.passed = 0;
  for (uint32_t i = 0; i < layer.experts.size(); ++i) {
    Expert& expert = layer.experts[i];
    expert.value = expert.history.last == 0 ? 0 : value_.value(expert.state);
    expert.is_ranked = expert.in_slot;
    if (expert.in_slot) layer.ranking.push_back(i);
  }
  std::ranges::stable_sort(layer.ranking, {}, [&](uint32_t i) { return layer.experts[i].value; });
  layer.arrivals = {};
}

size_t ReusePolicy::place_of(LayerId id) {
  return static_cast<size_t>(&layer_of(id) - layers_.data());
}

ReusePolicy::Layer& ReusePolicy::layer_of(LayerId id) {
  auto at = std::ranges::lower_bound(layers_, id, {}, &Layer::id);
  if (at != layers_.end() && at->id == id) return *at;
  at = layers_.emplace(at, id);
  discounts_.resize(layers_.size() + 1);
  for (size_t ahead = 0; ahead < discounts_.size(); ++ahead) {
    const double passes = static_cast<double>(ahead) / static_cast<double>(layers_.size());
    discounts_[ahead] = static_cast<float>(std::pow(ReuseValue::kDiscount, passes));
  }
  return *at;
}

ReusePolicy::Expert& ReusePolicy::expert_of(ExpertKey key) {
  Layer& layer = layer_of(key.layer);
  if (layer.experts.size() <= key.expert.value) layer.experts.resize(key.expert.value + 1);
  return layer.experts[key.expert.value];
}

}  // namespace dspack::runtime
