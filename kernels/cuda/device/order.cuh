// Maps FP32 values to integers of the same order: minus infinity lowest, NaN highest, both zeros equal. 0 is below the
// order of every value.
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

/// The value of an order, for numbers and infinities.
__device__ __forceinline__ float value_of(uint32_t order) {
  return gpu::bits_to_float((order & kSignBit) != 0 ? order ^ kSignBit : ~order);
}

}  // namespace dspack::kernels::cuda::device
