// Codes of groups of values; those of four bits with the scale of least squared error. For the instruction set files
// only (see table.inl.h).
//
// A vector has the same value of 16 groups, so that no sum crosses lanes: values i = l (mod 8) of a group are added in
// ascending order, then sums 4 apart, then 2, then 1. So every instruction set chooses the same scales.
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

inline uint32_t bits_of_float(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
inline float float_of_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline float magnitude_of(float value) {
  return value < 0 ? -value : value;
}
/// Finite values to BF16, to nearest, ties to even.
inline float nearest_bfloat(float value) {
  const uint32_t bits = bits_of_float(value);
  return float_of_bits((bits + 0x7fffU + (bits >> 16U & 1U)) & 0xffff0000U);
}

/// 16 groups of N values.
template <class V, uint32_t N>
struct GroupLanes {
  alignas(64) float values[N][kLanes];
  alignas(64) float scale[kLanes];       // found by search()
  alignas(64) float rounded[N][kLanes];  // in units of it, by round_all()

  explicit GroupLanes(const float* from) {
    for (uint32_t part = 0; part < N; part += kLanes) {
      V rows[kLanes];
      for (uint32_t g = 0; g < kLanes; ++g)
        rows[g] = V::load(from + size_t{g} * N + part);
      V::transpose(rows);
      for (uint32_t i = 0; i < kLanes; ++i)
        rows[i].store(values[part + i]);
    }
    for (float& one : scale)
      one = 1;
  }

  /// Finds each group's value of largest magnitude, the first among equals; `from` as above.
  void outermost(const float* from, float (&found)[kLanes]) const {
    V high = V::load(values[0]), low = high;
    for (uint32_t i = 1; i < N; ++i) {
      high = V::max(high, V::load(values[i]));
      low = V::min(low, V::load(values[i]));
    }
    alignas(64) float highs[kLanes], lows[kLanes];
    high.store(highs);
    low.store(lows);
    for (uint32_t g = 0; g < kLanes; ++g) {
      found[g] = highs[g] > -lows[g] ? highs[g] : lows[g];
      if (highs[g] != -lows[g]) continue;
      const float* group = from + size_t{g} * N;
      while (magnitude_of(*group) != highs[g])
        ++group;
      found[g] = *group;
    }
  }

  void multiply(const float (&by)[kLanes]) {
    for (uint32_t i = 0; i < N; ++i)
      V::mul(V::load(values[i]), V::load(by)).store(values[i]);
  }

  template <class Round>
  void round_all(Round round) {
    const V reciprocal = V::div(V::set(1), V::load(scale));
    for (uint32_t i = 0; i < N; ++i)
      round(V::mul(V::load(values[i]), reciprocal)).store(rounded[i]);
  }

  /// Adds the squared errors and values of the first groups, whose values have been multiplied by `by`.
  void add_losses(uint32_t groups, const float (&by)[kLanes], QuantiseTask& task) const {
    alignas(64) double errors[kLanes] = {}, squares[kLanes] = {};
    for (uint32_t i = 0; i < N; ++i) {
      for (uint32_t g = 0; g < kLanes; ++g) {
        const auto value = static_cast<double>(values[i][g]);
        const double off = static_cast<double>(rounded[i][g]) * static_cast<double>(scale[g]) - value;
        errors[g] += off * off;
        squares[g] += value * value;
      }
    }
    for (uint32_t g = 0; g < groups; ++g) {
      const double unit = by[g] == 0 ? 0 : 1 / static_cast<double>(by[g]);
      task.squared_error += errors[g] * unit * unit;
      task.squared_value += squares[g] * unit * unit;
    }
  }

  /// The scale with the least squared error of K, the first among equals. `round` maps values in units of the scale to
  /// the values of their nearest codes.
  template <uint32_t K, class Round>
  void search(const float (&scales)[K][kLanes], Round round) {
    alignas(64) float least[kLanes];
    for (float& one : least)
      one = __builtin_inff();
    for (const auto& candidate : scales) {
      const V unit = V::load(candidate), reciprocal = V::div(V::set(1), unit);
      V sums[8];
      for (V& sum : sums)
        sum = V::zero();
      for (uint32_t i = 0; i < N; i += 8) {
#pragma GCC unroll 8
        for (uint32_t l = 0; l < 8; ++l) {
          const V value = V::load(values[i + l]);
          const V off = V::sub(V::mul(round(V::mul(value, reciprocal)), unit), value);
          sums[l] = V::add(sums[l], V::mul(off, off));
        }
      }
      alignas(64) float errors[kLanes];
      total(sums).store(errors);
      for (uint32_t g = 0; g < kLanes; ++g) {
        const bool is_less = errors[g] < least[g];
        least[g] = is_less ? errors[g] : least[g];
        scale[g] = is_less ? candidate[g] : scale[g];
      }
    }
  }

  static V total(const V (&sums)[8]) {
    const V first = V::add(V::add(sums[0], sums[4]), V::add(sums[2], sums[6]));
    return V::add(first, V::add(V::add(sums[1], sums[5]), V::add(sums[3], sums[7])));
  }
};

/// Stores 16 bytes of each group, in lanes of 16 vectors as numbers, `stride` bytes apart.
template <class V>
void store_bytes(V (&bytes)[kLanes], uint8_t* to, uint32_t groups, uint32_t stride) {
  V::transpose(bytes);
  for (uint32_t g = 0; g < groups; ++g) {
    alignas(64) float values[kLanes];
    bytes[g].store(values);
    for (uint32_t i = 0; i < kLanes; ++i)
      to[size_t{g} * stride + i] = static_cast<uint8_t>(static_cast<int32_t>(values[i]));
  }
}

/// Brings each group to around 1, where squares neither overflow nor underflow; a power of two changes no bit of a
/// scale. `outer`: values of largest magnitude. `to_one`: the factors, 0 for a group that is stored as zeros; `power`:
/// their inverses, or 1.
inline void normalise(const float (&outer)[kLanes], float (&to_one)[kLanes], float (&power)[kLanes]) {
  // Below this a scale might lose bits as a subnormal number; such a small group is stored as zeros.
  constexpr float kLeast = 0x1p-100F;
  for (uint32_t g = 0; g < kLanes; ++g) {
    const uint32_t exponent = bits_of_float(outer[g]) >> 23U & 0xffU;
    const bool is_zero = magnitude_of(outer[g]) < kLeast;
    power[g] = float_of_bits(is_zero ? 127U << 23U : exponent << 23U);
    to_one[g] = is_zero ? 0.0F : exponent == 254 ? 0x1p-127F : float_of_bits((254U - exponent) << 23U);
  }
}

/// The nearest integers of 22 bits, ties to even.
template <class V>
V nearest_integer(V value) {
  const V rounder = V::set(12582912.0F);  // 1.5 * 2^23
  return V::sub(V::add(value, rounder), rounder);
}

// Candidate divisors of the signed value of largest magnitude. -8 maps it to the outermost code; a larger magnitude
// makes the codes finer and clips it, a smaller one makes them coarser. Relative RMS error of Gaussian values: 0.0816,
// of Student's t with 5 degrees of freedom 0.1036; with -8 alone 0.0860 and 0.1079; 29 divisors and a refined scale
// reach 0.0810 and 0.1031.
constexpr float kInt4Divisors[8] = {-8.0F, -7.4F, -7.7F, -8.3F, -8.6F, -8.9F, -9.3F, 7.2F};

/// The nearest codes, minus 8.
template <class V>
V round_to_int4(V value) {
  return nearest_integer(V::min(V::max(value, V::set(-8)), V::set(7)));
}

/// At most 16 groups of 32 values.
template <class V>
void int4_lanes(const float* values, uint32_t groups, uint8_t* codes, uint16_t* scales, QuantiseTask& task) {
  constexpr uint32_t kValues = 32;
  GroupLanes<V, kValues> lanes(values);
  alignas(64) float outer[kLanes], to_one[kLanes], power[kLanes];
  lanes.outermost(values, outer);
  normalise(outer, to_one, power);
  lanes.multiply(to_one);
  alignas(64) float candidates[8][kLanes];
  for (uint32_t k = 0; k < 8; ++k) {
    for (uint32_t g = 0; g < kLanes; ++g)
      candidates[k][g] = to_one[g] == 0 ? 1.0F : nearest_bfloat(outer[g] * to_one[g] / kInt4Divisors[k]);
  }
  lanes.search(candidates, round_to_int4<V>);
  lanes.round_all(round_to_int4<V>);
  V bytes[kLanes];
  for (uint32_t i = 0; i < kLanes; ++i) {
    const auto code = [&](uint32_t at) { return V::add(V::load(lanes.rounded[at]), V::set(8)); };
    bytes[i] = V::add(code(2 * i), V::mul(code(2 * i + 1), V::set(16)));
  }
  store_bytes(bytes, codes, groups, kValues / 2);
  for (uint32_t g = 0; g < groups; ++g)
    scales[g] = static_cast<uint16_t>(bits_of_float(lanes.scale[g] * power[g]) >> 16U);
  lanes.add_losses(groups, to_one, task);
}

/// The nearest codes, minus 128.
template <class V>
V round_to_int8(V value) {
  return nearest_integer(V::min(V::max(value, V::set(-128)), V::set(127)));
}

/// At most 16 groups of 32 values.
template <class V>
void int8_lanes(const float* values, uint32_t groups, uint8_t* codes, uint16_t* scales, QuantiseTask& task) {
  constexpr uint32_t kValues = 32;
  constexpr float kLargestCode = 127.0F;
  GroupLanes<V, kValues> lanes(values);
  alignas(64) float outer[kLanes], to_one[kLanes], power[kLanes];
  lanes.outermost(values, outer);
  normalise(outer, to_one, power);
  lanes.multiply(to_one);
  for (uint32_t g = 0; g < kLanes; ++g)
    lanes.scale[g] = to_one[g] == 0 ? 1.0F : nearest_bfloat(magnitude_of(outer[g]) * to_one[g] / kLargestCode);
  lanes.round_all(round_to_int8<V>);
  for (uint32_t half = 0; half < kValues; half += kLanes) {
    V bytes[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i)
      bytes[i] = V::add(V::load(lanes.rounded[half + i]), V::set(128));
    store_bytes(bytes, codes + half, groups, kValues);
  }
  for (uint32_t g = 0; g < groups; ++g)
    scales[g] = static_cast<uint16_t>(bits_of_float(lanes.scale[g] * power[g]) >> 16U);
  lanes.add_losses(groups, to_one, task);
}

// Candidate scales, as multiples of largest magnitude / 6. Relative RMS error of Gaussian values and of Student's t
// with 5 degrees of freedom: 0.083; with the factor 1 alone 0.095 and 0.092.
constexpr float kNvfp4Factors[9] = {1.0F, 0.96F, 0.92F, 0.88F, 0.84F, 0.80F, 0.76F, 1.04F, 1.5F};

/// The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 of values that are not negative, ties to even: multiples of 0.5 up to 2,
/// of 1 from there to 4, of 2 beyond.
template <class V>
V round_to_e2m1(V value) {
  const V two = V::set(2), four = V::set(4);
  const V halves = V::mul(nearest_integer(V::mul(V::min(value, two), two)), V::set(0.5F));
  const V units = V::sub(nearest_integer(V::min(V::max(value, two), four)), two);
  const V pairs =
      V::sub(V::mul(nearest_integer(V::mul(V::min(V::max(value, four), V::set(6)), V::set(0.5F))), two), four);
  return V::add(V::add(halves, units), pairs);
}

/// The code of a result of round_to_e2m1.
template <class V>
V e2m1_code(V value) {
  const V two = V::set(2), four = V::set(4);
  const V halves = V::mul(V::min(value, two), two);
  const V units = V::sub(V::min(V::max(value, two), four), two);
  return V::add(V::add(halves, units), V::mul(V::sub(V::max(value, four), four), V::set(0.5F)));
}

/// The nearest value of E4M3 from 2^-9 to 448, ties to even.
inline float nearest_e4m3(float value) {
  constexpr float kRounder = 0x1.8p14F;  // adding and taking it away rounds to multiples of 2^-9
  constexpr uint32_t kCut = 20;          // keeps 3 of the 23 mantissa bits
  const uint32_t bits = bits_of_float(value);
  const uint32_t half = (1U << (kCut - 1)) - 1 + (bits >> kCut & 1U);
  const float normal = float_of_bits((bits + half) & ~((1U << kCut) - 1));
  const float subnormal = (value + kRounder) - kRounder;
  return value < 0x1p-6F ? subnormal : normal;
}
/// The code of such a value.
inline uint8_t e4m3_code(float value) {
  if (value < 0x1p-6F) return static_cast<uint8_t>(static_cast<uint32_t>(value * 512));
  return static_cast<uint8_t>((bits_of_float(value) >> 20U) - ((127U - 7U) << 3U));
}

/// At most 16 groups of 16 values.
template <class V>
void nvfp4_lanes(const float* values, uint32_t groups, uint8_t* codes, uint8_t* scales, QuantiseTask& task) {
  constexpr uint32_t kValues = 16;
  constexpr float kLargestScale = 448.0F;
  constexpr float kLeastScale = 0x1p-9F;  // a scale of 0 would lose every value
  alignas(64) float magnitudes[kLanes * kValues];
  for (uint32_t i = 0; i < kLanes * kValues; ++i)
    magnitudes[i] = magnitude_of(values[i]);
  GroupLanes<V, kValues> lanes(magnitudes);
  alignas(64) float outer[kLanes], to_one[kLanes], candidates[9][kLanes];
  lanes.outermost(magnitudes, outer);
  // As int4's, or the squared errors of small values would be zero.
  for (uint32_t g = 0; g < kLanes; ++g)
    to_one[g] = float_of_bits((254U - (bits_of_float(outer[g]) >> 23U)) << 23U);
  lanes.multiply(to_one);
  for (uint32_t k = 0; k < 9; ++k) {
    for (uint32_t g = 0; g < kLanes; ++g) {
      const float wanted = kNvfp4Factors[k] * (outer[g] / 6) * task.global;
      const float low = wanted < kLeastScale ? kLeastScale : wanted;
      const float bounded = low > kLargestScale ? kLargestScale : low;
      candidates[k][g] = (outer[g] == 0 ? 1.0F : nearest_e4m3(bounded)) / task.global * to_one[g];
    }
  }
  lanes.search(candidates, round_to_e2m1<V>);
  lanes.round_all(round_to_e2m1<V>);
  alignas(64) float indices[kLanes * kValues];
  V rows[kLanes];
  for (uint32_t i = 0; i < kValues; ++i)
    rows[i] = e2m1_code(V::load(lanes.rounded[i]));
  V::transpose(rows);
  for (uint32_t g = 0; g < kLanes; ++g)
    rows[g].store(indices + size_t{g} * kValues);
  for (uint32_t i = 0; i < groups * kValues; i += 2) {
    const auto code = [&](uint32_t at) {
      const auto index = static_cast<uint32_t>(static_cast<int32_t>(indices[at]));
      return index | (values[at] < 0 && index != 0 ? 8U : 0U);
    };
    codes[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4U);
  }
  for (uint32_t g = 0; g < groups; ++g)
    scales[g] = e4m3_code(lanes.scale[g] / to_one[g] * task.global);
  lanes.add_losses(groups, to_one, task);
}

/// All groups of N values and `kBytes` bytes of codes, 16 at a time; the last are filled up with zeros.
template <class V, uint32_t N, uint32_t kBytes, class Scale, auto kLanesOf>
void quantise_groups(QuantiseTask& task) {
  const uint64_t whole = task.groups / kLanes * kLanes;
  auto* const scales = reinterpret_cast<Scale*>(task.scales);
  for (uint64_t g = 0; g < whole; g += kLanes)
    kLanesOf(task.values + g * N, kLanes, task.codes + g * kBytes, scales + g, task);
  if (whole == task.groups) return;
  alignas(64) float padded[kLanes * N] = {};
  __builtin_memcpy(padded, task.values + whole * N, (task.groups - whole) * N * sizeof(float));
  kLanesOf(padded, static_cast<uint32_t>(task.groups - whole), task.codes + whole * kBytes, scales + whole, task);
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
