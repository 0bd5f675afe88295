#include "tests/bench/route_generator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

namespace dspack::bench {

namespace {

constexpr uint32_t kWords = 20'000;

// SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

// Nearly normal, mean 0, variance 1: the bits of a number that are set, and a uniform part that fills the steps. Tails
// beyond 4 are cut, which top-8 of 256 does not see.
float normal_of(uint64_t bits) {
  const int ones = std::popcount(bits & 0xffffffffffffULL);                       // 48 bits: variance 12
  const float fill = static_cast<float>(bits >> 48U) * (1.0F / 65536.0F) - 0.5F;  // variance 1/12
  return (static_cast<float>(ones) - 24.0F + fill) * 0.287678F;                   // 1/sqrt(12 + 1/12)
}

}  // namespace

std::span<const RouteProfile> route_profiles() {
  static constexpr std::array<RouteProfile, 3> kProfiles = {{
      {.name = "weak",
       .topic = 0.15,
       .topic_tokens = 300,
       .recent = 0.40,
       .recent_tokens = 4,
       .word_first = 0.15,
       .word_last = 0.10,
       .bias = 0.02,
       .conversation = 1000},
      {.name = "middle",
       .topic = 0.20,
       .topic_tokens = 300,
       .recent = 0.60,
       .recent_tokens = 6,
       .word_first = 0.10,
       .word_last = 0.05,
       .bias = 0.02,
       .conversation = 1000},
      {.name = "strong",
       .topic = 0.25,
       .topic_tokens = 300,
       .recent = 0.60,
       .recent_tokens = 7,
       .word_first = 0.05,
       .word_last = 0.05,
       .bias = 0.02,
       .conversation = 1000},
  }};
  return kProfiles;
}

RouteGenerator::RouteGenerator(const RouteShape& shape, const RouteProfile& profile, uint64_t seed)
    : shape_(shape), profile_(profile), state_(mix(seed)), words_seed_(mix(seed ^ 0x5eedULL)) {
  const size_t all = size_t{shape.layers} * shape.experts;
  for (auto* part : {&bias_, &topic_, &recent_}) {
    part->resize(all);
    for (float& value : *part)
      value = normal();
  }
  lasting_.resize(all);
  scores_.resize(shape.experts);
  routes_.resize(size_t{shape.layers} * shape.top_k);
  double sum = 0;
  for (uint32_t word = 0; word < kWords; ++word)
    word_shares_.push_back(sum += 1.0 / (word + 1.0));
}

float RouteGenerator::normal() {
  return normal_of(mix(state_++));
}

uint32_t RouteGenerator::next_word() {
  const double at = static_cast<double>(mix(state_++) >> 11U) * 0x1p-53 * word_shares_.back();
  return static_cast<uint32_t>(std::ranges::upper_bound(word_shares_, at) - word_shares_.begin());
}

void RouteGenerator::begin_topic() {
  for (float& value : topic_)
    value = normal();
}

std::span<const uint16_t> RouteGenerator::next() {
  if (tokens_ > 0 && tokens_ % profile_.conversation == 0) begin_topic();
  ++tokens_;
  const uint64_t word = mix(words_seed_ + next_word());
  const auto keep_topic = static_cast<float>(std::exp(-1.0 / profile_.topic_tokens));
  const auto keep_recent = static_cast<float>(std::exp(-1.0 / profile_.recent_tokens));
  const float new_topic = std::sqrt(1 - keep_topic * keep_topic);
  const float new_recent = std::sqrt(1 - keep_recent * keep_recent);
  const auto a = static_cast<float>(std::sqrt(profile_.topic));
  const auto b = static_cast<float>(std::sqrt(profile_.recent));
  const auto c = static_cast<float>(std::sqrt(profile_.bias));
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    const double depth = shape_.layers == 1 ? 0 : static_cast<double>(layer) / (shape_.layers - 1);
    const double word_share = profile_.word_first + (profile_.word_last - profile_.word_first) * depth;
    const auto d = static_cast<float>(std::sqrt(word_share));
    const auto e =
        static_cast<float>(std::sqrt(std::max(0.0, 1 - profile_.topic - profile_.recent - profile_.bias - word_share)));
    const size_t first = size_t{layer} * shape_.experts;
    for (uint32_t expert = 0; expert < shape_.experts; ++expert) {
      const size_t i = first + expert;
      topic_[i] = keep_topic * topic_[i] + new_topic * normal();
      recent_[i] = keep_recent * recent_[i] + new_recent * normal();
      lasting_[i] = a * topic_[i] + b * recent_[i] + c * bias_[i];
      scores_[expert] = lasting_[i] + d * normal_of(mix(word + i)) + e * normal();
    }
    route(layer);
  }
  return routes_;
}

void RouteGenerator::route(uint32_t layer) {
  const uint32_t size = shape_.experts / shape_.groups;
  std::vector<float> group_scores(shape_.groups);
  for (uint32_t group = 0; group < shape_.groups; ++group) {
    float best = -1e9F;
    float second = best;
    for (uint32_t expert = group * size; expert < (group + 1) * size; ++expert) {
      second = std::max(second, std::min(best, scores_[expert]));
      best = std::max(best, scores_[expert]);
    }
    group_scores[group] = best + second;
  }
  std::vector<uint32_t> groups(shape_.groups);
  std::iota(groups.begin(), groups.end(), 0U);
  std::ranges::sort(groups, [&](uint32_t x, uint32_t y) { return group_scores[x] > group_scores[y]; });
  std::vector<uint16_t> candidates;
  for (uint32_t g = 0; g < shape_.top_groups; ++g) {
    for (uint32_t expert = groups[g] * size; expert < (groups[g] + 1) * size; ++expert)
      candidates.push_back(static_cast<uint16_t>(expert));
  }
  std::partial_sort_copy(candidates.begin(), candidates.end(), routes_.begin() + layer * shape_.top_k,
                         routes_.begin() + (layer + 1) * shape_.top_k,
                         [&](uint16_t x, uint16_t y) { return scores_[x] > scores_[y]; });
}

}  // namespace dspack::bench
