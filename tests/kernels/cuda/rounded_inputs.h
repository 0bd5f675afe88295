// What precision modes make of the inputs of a product, in double precision and in the plainest way.
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/precision.h"
#include "tests/kernels/reference.h"

namespace dspack::test {

inline constexpr uint32_t kInputBlock = 128;

inline double round_to_bf16(double value) {
  const int exponent = std::ilogb(value);
  return value == 0 ? 0 : std::ldexp(std::nearbyint(std::ldexp(value, 7 - exponent)), exponent - 7);
}

/// By trying all codes: the nearest, of two equally near ones the even code.
inline double round_to_e4m3_by_search(double value) {
  static const std::array<double, 127> codes = [] {
    std::array<double, 127> all{};
    for (size_t code = 0; code < all.size(); ++code)
      all[code] = decode_e4m3(static_cast<uint8_t>(code));
    return all;
  }();
  size_t best = 0;
  for (size_t code = 1; code < codes.size(); ++code) {
    const double now = std::abs(codes[code] - std::abs(value));
    const double before = std::abs(codes[best] - std::abs(value));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return std::copysign(codes[best], value);
}

/// What the tensor cores get in the place of x, and the FP32 division and product that fp8 adds: to the inputs of FP8
/// weights only.
inline std::vector<double> rounded_inputs(const std::vector<float>& x, uint32_t rows, uint32_t in,
                                          kernels::Precision precision, Dtype weights) {
  std::vector<double> rounded(x.begin(), x.end());
  if (precision == kernels::Precision::bf16 || weights == Dtype::bf16) {
    for (double& value : rounded)
      value = round_to_bf16(value);
    return rounded;
  }
  for (size_t row = 0; row < rows; ++row) {
    for (size_t first = 0; first < in; first += kInputBlock) {
      const auto begin = rounded.begin() + static_cast<std::ptrdiff_t>(row * in + first);
      const auto end = begin + static_cast<std::ptrdiff_t>(std::min<size_t>(kInputBlock, in - first));
      float largest = 0;
      for (auto value = begin; value != end; ++value)
        largest = std::max(largest, std::abs(static_cast<float>(*value)));
      const float even = largest / 448.0F;
      const float scale = even > 0 ? even : 1.0F;
      for (auto value = begin; value != end; ++value)
        *value = round_to_e4m3_by_search(static_cast<double>(static_cast<float>(*value) / scale)) *
                 static_cast<double>(scale);
    }
  }
  return rounded;
}

}  // namespace dspack::test
