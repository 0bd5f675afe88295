// The best of many values and where it is, over a warp: the largest, of equals the one with the lowest index; NaN is
// never larger. Merging is the same in any order.
#pragma once

#include <dspack_gpu.h>

namespace dspack::kernels::cuda::device {

inline constexpr uint32_t kNoIndex = 0xffffffffU;

struct Best {
  float value = 0;
  uint32_t index = kNoIndex;  // kNoIndex: none yet
};

/// NaN is left out: what is none afterwards has seen nothing else.
__device__ __forceinline__ Best better_of(const Best& a, const Best& b) {
  if (b.index == kNoIndex || b.value != b.value) return a;
  if (a.index == kNoIndex || b.value > a.value) return b;
  return b.value == a.value && b.index < a.index ? b : a;
}

/// Of all lanes, in every lane.
__device__ __forceinline__ Best best_of_warp(Best best) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const Best other{gpu::shuffle_xor(best.value, apart), gpu::shuffle_xor(best.index, apart)};
    best = better_of(best, other);
  }
  return best;
}

}  // namespace dspack::kernels::cuda::device
