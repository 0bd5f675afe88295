#include "runtime/experts/policy/reuse_value.h"

#include <algorithm>
#include <cmath>

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

ReuseValue::State ReuseValue::state_of(const UseHistory& history, uint64_t now) {
  return static_cast<State>(age_step(now - history.last) * kFrequencies + frequency_step(history.frequency));
}

void ReuseValue::learn(State state, bool used, State next) {
  const float outcome = used ? 1.0F : static_cast<float>(kDiscount) * values_[next].mean;
  Estimate& estimate = values_[state];
  if (static_cast<float>(estimate.examples) * kLeastStep < 1) ++estimate.examples;
  estimate.mean += (outcome - estimate.mean) / static_cast<float>(estimate.examples);
}

}  // namespace dspack::runtime
