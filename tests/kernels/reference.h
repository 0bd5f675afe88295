// The operations once more, in double precision and in the plainest way, written from the definitions in kernels/ops.h
// and sharing no code with the kernels. Threads: pure functions.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "format/dtype.h"

namespace dspack::test {

using Doubles = std::vector<double>;

inline double decode_e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const double sign = code >= 128 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * mantissa / 8 * std::exp2(-6);
  return sign * (1 + mantissa / 8.0) * std::exp2(exponent - 7);
}

inline double decode_half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = bits >= 32768 ? -1 : 1;
  if (exponent == 0) return sign * mantissa / 1024 * std::exp2(-14);
  return sign * (1 + mantissa / 1024.0) * std::exp2(exponent - 15);
}

inline double decode_bfloat(uint16_t bits) {
  const int exponent = (bits >> 7) & 255;
  const int mantissa = bits & 127;
  const double sign = bits >= 32768 ? -1 : 1;
  if (exponent == 0) return sign * mantissa / 128 * std::exp2(-126);
  return sign * (1 + mantissa / 128.0) * std::exp2(exponent - 127);
}

/// A sum with the sum of the magnitudes of its terms, which bounds the rounding error of any order of summation.
struct Sum {
  double value = 0;
  double magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

/// A weight matrix as decoded numbers, scales applied.
struct Matrix {
  uint32_t out = 0;
  uint32_t in = 0;
  Doubles values;
  [[nodiscard]] double at(uint32_t o, uint32_t i) const { return values[size_t{o} * in + i]; }
};

inline std::vector<Sum> linear(const Matrix& weight, const std::vector<float>& x, size_t rows, size_t stride) {
  std::vector<Sum> y(rows * weight.out);
  for (size_t r = 0; r < rows; ++r) {
    for (uint32_t o = 0; o < weight.out; ++o) {
      for (uint32_t i = 0; i < weight.in; ++i)
        y[r * weight.out + o].add(x[r * stride + i] * weight.at(o, i));
    }
  }
  return y;
}

inline Doubles softmax(const Doubles& scores) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double score : scores)
    largest = std::fmax(largest, score);
  double sum = 0;
  for (const double score : scores)
    sum += std::exp(score - largest);
  Doubles weights;
  for (const double score : scores)
    weights.push_back(std::exp(score - largest) / sum);
  return weights;
}

inline double silu(double x) {
  return x / (1 + std::exp(-x));
}

}  // namespace dspack::test
