// The scales of matrix rows, as FP32.
#pragma once

#include <dspack_gpu.h>

#include <type_traits>

#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/matrix.h"

namespace dspack::kernels::cuda::device {

/// The row of scales of a matrix row, for plain FP32 scales; null: none.
__device__ __forceinline__ const float* scales_of(const Matrix& matrix, uint32_t row) {
  const auto* scales = static_cast<const float*>(matrix.planes[kScales]);
  if (scales == nullptr) return nullptr;
  return scales + uint64_t{row / matrix.block_out} * ((matrix.in - 1) / matrix.block_in + 1);
}

/// Offsets of the scales of each row, for matrices of one form. A division by a number that is only known at run time
/// takes some hundred cycles, so this is computed once, while the first weights are in flight.
struct ScaleRows {
  uint32_t blocks_a_row = 0;
  uint32_t block_out = 0;   // 0: no scales
  uint32_t reciprocal = 0;  // (2^32 - 1) / block_out, rounded down

  __device__ __forceinline__ explicit ScaleRows(const Matrix& form) {
    if (form.planes[kScales] == nullptr) return;
    blocks_a_row = (form.in - 1) / form.block_in + 1;
    block_out = form.block_out;
    reciprocal = 0xffffffffU / block_out;
  }
  /// The row of scales that belongs to a matrix row.
  __device__ __forceinline__ uint32_t block_of(uint32_t row) const {
    // The reciprocal is too small by at most one, so the quotient is right or one less.
    auto block = static_cast<uint32_t>(uint64_t{row} * reciprocal >> 32U);
    if (block_out > 0 && row - block * block_out >= block_out) ++block;
    return block;
  }
  /// Index in the matrix of a row's first scale.
  __device__ __forceinline__ uint64_t first_of(uint32_t row) const { return uint64_t{block_of(row)} * blocks_a_row; }
};

/// 2^(code - 127): the code is the exponent field, except code 0, whose value is subnormal, and 255, which is NaN.
__device__ __forceinline__ float decode_e8m0(uint32_t code) {
  return gpu::bits_to_float(code == 0 ? 0x00400000U : code == 255 ? 0x7fc00000U : code << 23U);
}

/// Scale `index` of a matrix, in any storage form.
__device__ __forceinline__ float decode_scale(const Matrix& matrix, uint64_t index) {
  const void* scales = matrix.planes[kScales];
  float value = 0;
  switch (matrix.scale) {
    case ScaleCoding::bf16:
      value = gpu::bits_to_float(uint32_t{static_cast<const uint16_t*>(scales)[index]} << 16U);
      break;
    case ScaleCoding::f16: value = gpu::halves_to_floats(static_cast<const uint16_t*>(scales)[index]).x; break;
    case ScaleCoding::f8_e4m3:
      value = gpu::halves_to_floats(gpu::f8_to_halves(static_cast<const uint8_t*>(scales)[index]).x).x;
      break;
    case ScaleCoding::f8_e8m0: value = decode_e8m0(static_cast<const uint8_t*>(scales)[index]); break;
    default: value = static_cast<const float*>(scales)[index]; break;
  }
  if (matrix.global == GlobalScale::none) return value;
  const float global = *static_cast<const float*>(matrix.planes[kGlobal]);
  return matrix.global == GlobalScale::times ? value * global : value / global;
}

/// Zero point `index` of a matrix that has zero points.
__device__ __forceinline__ float decode_zero(const Matrix& matrix, uint64_t index) {
  return static_cast<float>(static_cast<const uint8_t*>(matrix.planes[kZeros])[index]);
}

/// The scales of one matrix row, by block. Only packed codes have scales other than plain FP32 (check_weight).
template <bool kPacked>
struct RowScales {
  const float* scales;
  __device__ __forceinline__ void take(const Matrix& matrix, uint32_t row) { scales = scales_of(matrix, row); }
  __device__ __forceinline__ void take(const Matrix& matrix, const ScaleRows& rows, uint32_t row) {
    scales = static_cast<const float*>(matrix.planes[kScales]);
    if (scales != nullptr) scales += rows.first_of(row);
  }
  __device__ __forceinline__ float at(const Matrix& /*matrix*/, uint32_t block) const {
    return scales == nullptr ? 1.0F : scales[block];
  }
};
template <>
struct RowScales<true> {
  uint64_t first;
  __device__ __forceinline__ void take(const Matrix& matrix, uint32_t row) {
    const bool is_scaled = matrix.planes[kScales] != nullptr;
    first = is_scaled ? uint64_t{row / matrix.block_out} * ((matrix.in - 1) / matrix.block_in + 1) : 0;
  }
  __device__ __forceinline__ void take(const Matrix& /*matrix*/, const ScaleRows& rows, uint32_t row) {
    first = rows.first_of(row);
  }
  __device__ __forceinline__ float at(const Matrix& matrix, uint32_t block) const {
    return matrix.planes[kScales] == nullptr ? 1.0F : decode_scale(matrix, first + block);
  }
  __device__ __forceinline__ float zero_at(const Matrix& matrix, uint32_t block) const {
    return decode_zero(matrix, first + block);
  }
};
/// For weights without scales.
struct NoScales {
  __device__ __forceinline__ void take(const Matrix& /*matrix*/, uint32_t /*row*/) {}
  __device__ __forceinline__ float at(const Matrix& /*matrix*/, uint32_t /*block*/) const { return 1.0F; }
};
template <class Stored>
using ScalesOf = std::conditional_t<kMayHaveScales<Stored>, RowScales<kIsPacked<Stored>>, NoScales>;

}  // namespace dspack::kernels::cuda::device
