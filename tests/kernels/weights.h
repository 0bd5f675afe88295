// Random weights of every stored type, with and without scales, and what they mean.
// Threads: pure functions.
#pragma once

#include <ostream>

#include "format/base/checked.h"
#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"

namespace dspack::test {

/// A weight matrix to be made. block_out 0: no scale.
struct WeightCase {
  Dtype dtype = Dtype::f8_e4m3;
  uint32_t out = 0;
  uint32_t in = 0;
  uint32_t block_out = 0;
  uint32_t block_in = 0;
};

inline std::ostream& operator<<(std::ostream& out, const WeightCase& c) {
  return out << to_string(c.dtype) << " [" << c.out << ", " << c.in << "] blocks " << c.block_out << " x "
             << c.block_in;
}

inline kernels::WeightForm form_of(const WeightCase& c) {
  return {kernels::coding_of(c.dtype).value(), c.out, c.in, c.block_out, c.block_in};
}

inline constexpr Dtype kWeightTypes[] = {Dtype::f8_e4m3, Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::i8};

struct RandomWeight {
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  Matrix matrix;
  WeightCase shape;

  kernels::Weight put(Lab& lab) const {
    kernels::Weight weight{form_of(shape), {lab.raw(bytes.data(), bytes.size(), bytes_of(shape.dtype, 1))}};
    if (!scales.empty()) weight.planes[kernels::kScales] = lab.put(scales);
    return weight;
  }
};

template <class Bits>
double store_bits(std::vector<uint8_t>& bytes, size_t index, Bits bits, double value) {
  std::memcpy(bytes.data() + index * sizeof bits, &bits, sizeof bits);
  return value;
}

/// Writes one random element and returns its value. Never NaN or infinite; subnormal codes included.
inline double random_element(Dtype dtype, std::vector<uint8_t>& bytes, size_t index, Random& random) {
  const uint32_t sign = random.below(2);
  if (dtype == Dtype::f8_e4m3) {
    const auto code = static_cast<uint8_t>(random.below(0x7f) | sign << 7);
    return store_bits(bytes, index, code, decode_e4m3(code));
  }
  if (dtype == Dtype::i8) {  // two's complement, all 256 codes
    const auto code = static_cast<uint8_t>(random.below(0x80) | sign << 7);
    return store_bits(bytes, index, code, static_cast<double>(code) - 256.0 * sign);
  }
  if (dtype == Dtype::f16) {  // up to 2^3
    const auto bits = static_cast<uint16_t>(random.below(18 << 10) | sign << 15);
    return store_bits(bytes, index, bits, decode_half(bits));
  }
  const float value = random.normal();
  if (dtype == Dtype::f32) return store_bits(bytes, index, value, value);
  const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  return store_bits(bytes, index, bits, decode_bfloat(bits));
}

inline RandomWeight random_weight(const WeightCase& shape, Random& random) {
  RandomWeight weight{.bytes = {}, .scales = {}, .matrix = {shape.out, shape.in, {}}, .shape = shape};
  const size_t count = size_t{shape.out} * shape.in;
  weight.bytes.resize(bytes_of(shape.dtype, count));
  weight.matrix.values.resize(count);
  for (size_t i = 0; i < count; ++i) {
    weight.matrix.values[i] = random_element(shape.dtype, weight.bytes, i, random);
  }
  if (shape.block_out == 0) return weight;
  const size_t across = ceil_div(shape.in, shape.block_in);
  weight.scales.resize(ceil_div(shape.out, shape.block_out) * across);
  for (float& scale : weight.scales)
    scale = random.uniform(1e-4F, 2e-3F);
  for (size_t i = 0; i < count; ++i) {
    weight.matrix.values[i] *= weight.scales[i / shape.in / shape.block_out * across + i % shape.in / shape.block_in];
  }
  return weight;
}

}  // namespace dspack::test
