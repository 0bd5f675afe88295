// Rounds input rows for the tensor cores: to BF16, or in precision fp8 to E4M3 codes with a scale for each 128 values.
// Source: DeepSeek-V3 inference/kernel.py, act_quant: scale = largest magnitude / 448.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/tokens/elementwise.h"
#include "kernels/cuda/tokens/rounded_rows.h"

namespace dspack::kernels::cuda::device {

using cuda::kRoundedBlock;  // four values per lane of a warp

/// The nearest E4M3 value, ties to even, for |value| up to 448. Exact in BF16.
__device__ __forceinline__ float round_to_e4m3(float value) {
  constexpr uint32_t kSign = 0x80000000U;
  constexpr float kSmallestNormal = 0.015625F;  // 2^-6
  constexpr float kUnitIsSubnormal = 16384.0F;  // FP32 numbers near it are 2^-9 apart, like subnormal E4M3
  const uint32_t bits = gpu::float_to_bits(value);
  const float magnitude = gpu::bits_to_float(bits & ~kSign);
  float rounded = (magnitude + kUnitIsSubnormal) - kUnitIsSubnormal;
  if (!(magnitude < kSmallestNormal)) {  // NaN stays NaN
    constexpr unsigned kDropped = 20;    // mantissa bits dropped from 23
    const uint32_t half = (1U << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1U);
    rounded = magnitude <= 448.0F ? gpu::bits_to_float(((bits & ~kSign) + half) >> kDropped << kDropped) : magnitude;
  }
  return gpu::bits_to_float(gpu::float_to_bits(rounded) | (bits & kSign));
}

inline constexpr float kLargestE4m3 = 448.0F;

/// The largest magnitude of the warp's values, four per lane; NaN is ignored.
__device__ __forceinline__ float largest_of_block(const float (&values)[4]) {
  float largest = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const float other = gpu::shuffle_xor(largest, apart);
    largest = other > largest ? other : largest;
  }
  return largest;
}

/// The scale of values whose largest magnitude is `largest`. 1 if the quotient is zero (magnitudes up to 3e-43):
/// dividing by it would turn each value into infinity, and each zero into NaN.
__device__ __forceinline__ float scale_of(float largest) {
  const float even = gpu::divide(largest, kLargestE4m3);
  return even > 0 ? even : 1.0F;
}

/// Rounds four values per lane, which together are a block, to multiples of a scale by E4M3 values; returns the scale.
__device__ __forceinline__ float round_block(float (&values)[4]) {
  const float scale = scale_of(largest_of_block(values));
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    values[i] = round_to_e4m3(gpu::divide(values[i], scale));
  return scale;
}

/// Rounds four values per lane, which together are block `block` of row `to_row`.
template <bool kFp8>
__device__ __forceinline__ void store_rounded(float (&values)[4], uint32_t block, const RoundedRows& to,
                                              uint64_t to_row) {
  const unsigned lane = gpu::lane_index();
  if constexpr (kFp8) {
    const float scale = round_block(values);
    if (lane == 0) to.scales[to_row * (to.columns / kRoundedBlock) + block] = scale;
  }
  *reinterpret_cast<uint2*>(to.values + to_row * to.columns + block * kRoundedBlock + lane * 4) =
      make_uint2(gpu::floats_to_bf16s(values[0], values[1]), gpu::floats_to_bf16s(values[2], values[3]));
}

/// Rounds block `block` of a row of `in` values to row `to_row`, zero-padded. Call with a whole warp.
template <bool kFp8>
__device__ __forceinline__ void round_row_block(const float* row, uint32_t in, uint32_t block, const RoundedRows& to,
                                                uint64_t to_row) {
  const uint32_t column = block * kRoundedBlock + gpu::lane_index() * 4;
  float values[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    values[i] = column + i < in ? row[column + i] : 0.0F;
  store_rounded<kFp8>(values, block, to, to_row);
}

/// Rounds the result of a norm (normalise_row).
__device__ __forceinline__ void round_normalised(const RmsNormTask& task, uint64_t row, uint32_t column,
                                                 const float4& values) {
  const uint32_t block = column / kRoundedBlock;
  float each[4] = {values.x, values.y, values.z, values.w};
  if (task.bf16.values != nullptr) store_rounded<false>(each, block, task.bf16, row);
  if (task.fp8.values != nullptr) store_rounded<true>(each, block, task.fp8, row);
}

}  // namespace dspack::kernels::cuda::device
