// Random weights of every stored type, with and without scales, and what they mean.
// Threads: pure functions.
#pragma once

#include <optional>
#include <ostream>

#include "format/base/size.h"
#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"

namespace dspack::test {

/// Codes of four bits, and how their scales are stored.
struct PackedCodes {
  kernels::Coding coding = kernels::Coding::i4;
  kernels::ScaleCoding scale = kernels::ScaleCoding::f32;
  kernels::GlobalScale global = kernels::GlobalScale::none;
};

/// A weight matrix to be made. block_out 0: no scale.
struct WeightCase {
  Dtype dtype = Dtype::f8_e4m3;  // without effect where codes are packed
  uint32_t out = 0;
  uint32_t in = 0;
  uint32_t block_out = 0;
  uint32_t block_in = 0;
  std::optional<PackedCodes> packed = std::nullopt;
};

inline kernels::WeightForm form_of(const WeightCase& c) {
  if (!c.packed) return {kernels::coding_of(c.dtype).value(), c.out, c.in, c.block_out, c.block_in};
  return {c.packed->coding, c.out, c.in, c.block_out, c.block_in, c.packed->scale, c.packed->global};
}

inline uint32_t bits_of(const WeightCase& c) {
  return kernels::facts_of(form_of(c).coding).bits;
}

inline std::ostream& operator<<(std::ostream& out, const WeightCase& c) {
  const kernels::WeightForm form = form_of(c);
  return out << kernels::facts_of(form.coding).name << " [" << c.out << ", " << c.in << "] blocks " << c.block_out
             << " x " << c.block_in << ", scales " << static_cast<int>(form.scale) << ", "
             << static_cast<int>(form.global);
}

/// As checkpoints have them, and every way to store a scale once.
inline constexpr PackedCodes kPackedCodes[] = {
    {kernels::Coding::i4, kernels::ScaleCoding::bf16, kernels::GlobalScale::none},
    {kernels::Coding::i4, kernels::ScaleCoding::f16, kernels::GlobalScale::none},
    {kernels::Coding::i4, kernels::ScaleCoding::f32, kernels::GlobalScale::times},
    {kernels::Coding::e2m1, kernels::ScaleCoding::f32, kernels::GlobalScale::none},
    {kernels::Coding::e2m1, kernels::ScaleCoding::f8_e8m0, kernels::GlobalScale::none},
    {kernels::Coding::e2m1, kernels::ScaleCoding::f8_e4m3, kernels::GlobalScale::times},
    {kernels::Coding::e2m1, kernels::ScaleCoding::f8_e4m3, kernels::GlobalScale::over},
    {kernels::Coding::u4, kernels::ScaleCoding::f16, kernels::GlobalScale::none},
    {kernels::Coding::u4, kernels::ScaleCoding::bf16, kernels::GlobalScale::times}};

inline constexpr Dtype kWeightTypes[] = {Dtype::f8_e4m3, Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::i8};

struct RandomWeight {
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  Matrix matrix;
  WeightCase shape;
  std::vector<uint8_t> packed_scales = {};  // in place of `scales` where codes are packed
  float global = 1;
  std::vector<uint8_t> zeros = {};  // one for each scale, of codes that have such

  /// Its planes as Place, wherever put(values) puts them.
  template <class Place, class Put>
  void put_planes(Place (&planes)[kernels::kPlanes], const Put& put) const {
    if (!scales.empty()) planes[kernels::kScales] = put(scales);
    if (!packed_scales.empty()) planes[kernels::kScales] = put(packed_scales);
    if (shape.packed && shape.packed->global != kernels::GlobalScale::none)
      planes[kernels::kGlobal] = put(std::vector{global});
    if (!zeros.empty()) planes[kernels::kZeros] = put(zeros);
  }

  kernels::Weight put(Lab& lab) const {
    const size_t alignment = shape.packed ? 1 : code_alignment(bytes_of(shape.dtype, 1));
    kernels::Weight weight{form_of(shape), {lab.raw(bytes.data(), bytes.size(), alignment)}};
    if (!scales.empty()) weight.planes[kernels::kScales] = lab.put(scales);
    if (!packed_scales.empty())
      weight.planes[kernels::kScales] =
          lab.raw(packed_scales.data(), packed_scales.size(), kernels::scale_bytes(shape.packed->scale));
    if (shape.packed && shape.packed->global != kernels::GlobalScale::none)
      weight.planes[kernels::kGlobal] = lab.put(std::vector{global});
    if (!zeros.empty()) weight.planes[kernels::kZeros] = lab.raw(zeros.data(), zeros.size(), 1);
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

inline double decode_nibble(kernels::Coding coding, uint32_t code) {
  constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (coding == kernels::Coding::i4) return static_cast<double>(code) - 8;
  if (coding == kernels::Coding::u4) return code;
  return code < 8 ? kE2m1[code] : -kE2m1[code - 8];
}

/// Stores a random scale and returns its value.
inline double random_scale(kernels::ScaleCoding coding, std::vector<uint8_t>& bytes, size_t index, Random& random) {
  switch (coding) {
    case kernels::ScaleCoding::f8_e4m3: return random_element(Dtype::f8_e4m3, bytes, index, random);
    case kernels::ScaleCoding::f8_e8m0: {
      const auto code = static_cast<uint8_t>(random.between(110, 120));
      return store_bits(bytes, index, code, std::exp2(code - 127));
    }
    case kernels::ScaleCoding::f16: return random_element(Dtype::f16, bytes, index, random);
    case kernels::ScaleCoding::bf16: return random_element(Dtype::bf16, bytes, index, random);
    default: return random_element(Dtype::f32, bytes, index, random);
  }
}

inline RandomWeight random_packed(const WeightCase& shape, Random& random) {
  RandomWeight weight{.bytes = {},
                      .scales = {},
                      .matrix = {shape.out, shape.in, Doubles(size_t{shape.out} * shape.in)},
                      .shape = shape,
                      .packed_scales = {},
                      .global = random.uniform(1e-3F, 2e-3F),
                      .zeros = {}};
  const size_t row_bytes = ceil_div(shape.in, 2);
  weight.bytes.resize(shape.out * row_bytes);
  for (uint8_t& byte : weight.bytes)
    byte = static_cast<uint8_t>(random.below(256));  // of an odd row the last half is not an element
  const kernels::WeightForm form = form_of(shape);
  Doubles scales{1.0};
  size_t across = 1;
  if (shape.block_out != 0) {
    across = ceil_div(shape.in, shape.block_in);
    scales.resize(ceil_div(shape.out, shape.block_out) * across);
    weight.packed_scales.resize(scales.size() * kernels::scale_bytes(form.scale));
    for (size_t i = 0; i < scales.size(); ++i) {
      const double stored = random_scale(form.scale, weight.packed_scales, i, random);
      const double global = static_cast<double>(weight.global);
      scales[i] = form.global == kernels::GlobalScale::none    ? stored
                  : form.global == kernels::GlobalScale::times ? static_cast<float>(stored * global)
                                                               : static_cast<float>(stored / global);
    }
  }
  if (kernels::facts_of(form.coding).has_zeros) weight.zeros.resize(scales.size());
  for (uint8_t& zero : weight.zeros)
    zero = static_cast<uint8_t>(random.below(17));  // GPTQ's stored ones are one less
  for (size_t row = 0; row < shape.out; ++row) {
    for (size_t column = 0; column < shape.in; ++column) {
      const uint32_t code = weight.bytes[row * row_bytes + column / 2] >> (column % 2 * 4) & 0xf;
      const size_t scale = shape.block_out == 0 ? 0 : row / shape.block_out * across + column / shape.block_in;
      const double zero = weight.zeros.empty() ? 0 : weight.zeros[scale];
      weight.matrix.values[row * shape.in + column] = (decode_nibble(form.coding, code) - zero) * scales[scale];
    }
  }
  return weight;
}

inline RandomWeight random_weight(const WeightCase& shape, Random& random) {
  if (shape.packed) return random_packed(shape, random);
  RandomWeight weight{
      .bytes = {}, .scales = {}, .matrix = {shape.out, shape.in, {}}, .shape = shape, .packed_scales = {}};
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

/// A weight that has no scales, with a scale of 1 for each row.
inline RandomWeight with_scales_of_one(RandomWeight weight) {
  weight.shape.block_out = 1;
  weight.shape.block_in = weight.shape.in;
  weight.scales.assign(weight.shape.out, 1.0F);
  return weight;
}

}  // namespace dspack::test
