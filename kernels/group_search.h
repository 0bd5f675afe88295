// Searches the scale of a group of values with the least error; shared by the quantisers of small groups, internal to
// them. Uses compiler vectors of four values, so that the sums are the same on every processor.
// Threads: pure functions. Errors: none.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace dspack::kernels {

using Four = float __attribute__((vector_size(16)));

/// N values that share a scale.
template <uint32_t N>
union Group {
  static constexpr uint32_t kFours = N / 4;
  Four fours[kFours];
  float values[N];
};

/// A quantised group: its values are `rounded` times `scale`.
template <uint32_t N>
struct Rounded {
  float scale = 1;
  Group<N> rounded{};
};

/// Sums in a fixed order: values i = l (mod 8) into one sum each, then sums 4 apart are added, then 2, then 1.
template <uint32_t N>
float squared_error(const Group<N>& group, const Group<N>& rounded, float scale) {
  Four sums[2] = {};
  for (uint32_t i = 0; i < Group<N>::kFours; ++i) {
    const Four error = rounded.fours[i] * scale - group.fours[i];
    sums[i % 2] += error * error;
  }
  const Four sum = sums[0] + sums[1];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/// The value of largest magnitude with its sign, the first among equals.
template <uint32_t N>
float outermost(const Group<N>& group) {
  float found = 0;
  for (const float value : group.values) {
    if (std::abs(value) > std::abs(found)) found = value;
  }
  return found;
}

/// The scale with the least squared error, the first among equals. `round` maps four values, in units of the scale, to
/// the values of their nearest codes.
template <uint32_t N, class Round>
Rounded<N> search_scale(const Group<N>& group, std::span<const float> scales, Round round) {
  Rounded<N> best;
  float least = std::numeric_limits<float>::infinity();
  Group<N> rounded;
  for (const float scale : scales) {
    const float reciprocal = 1.0F / scale;
    for (uint32_t i = 0; i < Group<N>::kFours; ++i)
      rounded.fours[i] = round(group.fours[i] * reciprocal);
    const float error = squared_error(group, rounded, scale);
    if (error < least) {
      least = error;
      best = {.scale = scale, .rounded = rounded};
    }
  }
  return best;
}

}  // namespace dspack::kernels
