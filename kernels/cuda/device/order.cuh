// FP32 values as numbers that compare as they do: minus infinity lowest, NaN above everything, both zeros the same.
// 0 is below that of every value.
// Threads: pure functions.
#pragma once

#include <dspack_gpu.h>

namespace dspack::kernels::cuda::device {

inline constexpr uint32_t kSignBit = 0x80000000U;
inline constexpr uint32_t kOrderOfMinusInfinity = 0x007fffffU;
inline constexpr uint32_t kOrderOfInfinity = 0xff800000U;
inline constexpr uint32_t kOrderOfNan = 0xffffffffU;

__device__ __forceinline__ uint32_t order_of(float value) {
  if (value != value) return kOrderOfNan;
  const uint32_t bits = gpu::float_to_bits(value + 0.0F);
  return (bits & kSignBit) != 0 ? ~bits : bits | kSignBit;
}

/// Of the order of a number or an infinity, that value.
__device__ __forceinline__ float value_of(uint32_t order) {
  return gpu::bits_to_float((order & kSignBit) != 0 ? order ^ kSignBit : ~order);
}

}  // namespace dspack::kernels::cuda::device
