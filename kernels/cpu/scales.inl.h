// The scales of a row as FP32. For the instruction set files only (see table.inl.h).
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Scales decoded at once; with groups of 32, those of 2,048 columns.
constexpr uint32_t kScaleWindow = 64;

/// 2^(code - 127): the code is the exponent field, except code 0, whose value is subnormal, and 255, which is NaN.
inline float decode_e8m0(std::byte byte) {
  const auto code = static_cast<uint32_t>(byte);
  const uint32_t is_edge = code == 0 || code == 255 ? 1 : 0;
  const uint32_t bits = code << 23 | is_edge << 22;
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// 16 scales from `from` on.
template <class V, ScaleCoding C>
V load_scales(const std::byte* from) {
  if constexpr (C == ScaleCoding::bf16) {
    return V::load_bf16(from);
  } else if constexpr (C == ScaleCoding::f16) {
    return V::load_f16(from);
  } else if constexpr (C == ScaleCoding::f8_e4m3) {
    return V::mul(V::load_e4m3_over_256(from), V::set(256.0F));
  } else if constexpr (C == ScaleCoding::f8_e8m0) {
    alignas(64) float values[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i)
      values[i] = decode_e8m0(from[i]);
    return V::load(values);
  } else {
    return V::load_f32(from);
  }
}

inline size_t scale_index(const MatrixView& matrix, uint32_t row, uint32_t block) {
  return size_t{row / matrix.block_out} * matrix.scale_stride + block;
}
inline const std::byte* scales_of_row(const MatrixView& matrix, uint32_t row, uint32_t block) {
  return matrix.planes[kScales] + scale_index(matrix, row, block) * scale_bytes(matrix.scale);
}

/// The global scale of a matrix: multiplies the stored scales, or divides them if `divides`.
struct GlobalFactor {
  float value = 1.0F;
  bool divides = false;
};

template <class V, ScaleCoding C>
void decode_scales_of(const std::byte* from, uint32_t count, const GlobalFactor& global, float unit,
                      float (&window)[kScaleWindow]) {
  constexpr size_t kBytes = scale_bytes(C);
  const V factor = V::set(global.value);
  for (uint32_t i = 0; i < count; i += kLanes) {
    alignas(64) std::byte padded[kLanes * sizeof(float)] = {};
    const bool is_whole = i + kLanes <= count;
    if (!is_whole) __builtin_memcpy(padded, from + i * kBytes, (count - i) * kBytes);
    const V stored = load_scales<V, C>(is_whole ? from + i * kBytes : padded);
    const V value = global.divides ? V::div(stored, factor) : V::mul(stored, factor);
    V::mul(value, V::set(unit)).store(window + i);
  }
}

/// Decodes the scales of `count` blocks of a row, from `first` on, times `unit` (a power of two), into `window`. Reads
/// nothing beyond them.
template <class V>
void decode_scales(const MatrixView& matrix, uint32_t row, uint32_t first, uint32_t count, float unit,
                   float (&window)[kScaleWindow]) {
  const std::byte* from = scales_of_row(matrix, row, first);
  GlobalFactor global;
  if (matrix.global != GlobalScale::none) {
    __builtin_memcpy(&global.value, matrix.planes[kGlobal], sizeof global.value);
    global.divides = matrix.global == GlobalScale::over;
  }
  switch (matrix.scale) {
    case ScaleCoding::f32: return decode_scales_of<V, ScaleCoding::f32>(from, count, global, unit, window);
    case ScaleCoding::bf16: return decode_scales_of<V, ScaleCoding::bf16>(from, count, global, unit, window);
    case ScaleCoding::f16: return decode_scales_of<V, ScaleCoding::f16>(from, count, global, unit, window);
    case ScaleCoding::f8_e4m3: return decode_scales_of<V, ScaleCoding::f8_e4m3>(from, count, global, unit, window);
    case ScaleCoding::f8_e8m0: return decode_scales_of<V, ScaleCoding::f8_e8m0>(from, count, global, unit, window);
  }
}

inline bool has_plain_scales(const MatrixView& matrix) {
  return matrix.scale == ScaleCoding::f32 && matrix.global == GlobalScale::none;
}

template <class V>
float scale_at(const MatrixView& matrix, uint32_t row, uint32_t block) {
  float scale = 0;
  if (has_plain_scales(matrix)) {
    __builtin_memcpy(&scale, scales_of_row(matrix, row, block), sizeof scale);  // may be unaligned for packed codes
    return scale;
  }
  if (matrix.scale == ScaleCoding::bf16 && matrix.global == GlobalScale::none) {
    uint16_t high = 0;
    __builtin_memcpy(&high, scales_of_row(matrix, row, block), sizeof high);
    const uint32_t bits = uint32_t{high} << 16U;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return scale;
  }
  alignas(64) float window[kScaleWindow];
  decode_scales<V>(matrix, row, block, 1, 1.0F, window);
  return window[0];
}

/// The zero points of one block for O rows, `apart` rows from each other, for codings that have zero points.
template <class V, class L, uint32_t O>
auto zeros_of(const MatrixView& matrix, uint32_t row, uint32_t apart, uint32_t block) {
  if constexpr (!facts_of(L::kCoding).has_zeros) {
    return NoZeros<V>();
  } else {
    BlockZeros<V, O> zeros;
    for (uint32_t o = 0; o < O; ++o) {
      const std::byte zero = matrix.planes[kZeros][scale_index(matrix, row + o * apart, block)];
      zeros.zero[o] = V::set(static_cast<float>(static_cast<uint8_t>(zero)));
    }
    return zeros;
  }
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
