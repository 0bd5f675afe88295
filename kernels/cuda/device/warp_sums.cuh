// Sums of whole 64-bit numbers over a warp and a block. All lanes, or all threads, take part.
#pragma once

#include <dspack_gpu.h>

namespace dspack::kernels::cuda::device {

__device__ __forceinline__ uint64_t shuffle_wide(uint64_t value, unsigned lane) {
  const uint32_t low = gpu::shuffle(static_cast<uint32_t>(value), lane);
  const uint32_t high = gpu::shuffle(static_cast<uint32_t>(value >> 32U), lane);
  return uint64_t{high} << 32U | low;
}

/// In every lane.
__device__ __forceinline__ uint64_t sum_of_warp(uint64_t value) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
    value += shuffle_wide(value, gpu::lane_index() ^ apart);
  return value;
}

/// In every lane.
__device__ __forceinline__ uint32_t highest_of_warp(uint32_t value) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const uint32_t other = gpu::shuffle_xor(value, apart);
    value = other > value ? other : value;
  }
  return value;
}

/// Of the lanes up to this one.
__device__ __forceinline__ uint64_t sum_so_far(uint64_t value) {
#pragma unroll
  for (unsigned apart = 1; apart < gpu::kWarpThreads; apart *= 2) {
    const uint64_t other = shuffle_wide(value, gpu::lane_index() - apart);
    if (gpu::lane_index() >= apart) value += other;
  }
  return value;
}

/// In every thread; `of_warps` has a place for each warp.
__device__ __forceinline__ uint64_t sum_of_block(uint64_t value, uint64_t* of_warps) {
  value = sum_of_warp(value);
  gpu::block_barrier();  // an earlier sum has been read
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = value;
  gpu::block_barrier();  // the warps' sums are there
  uint64_t sum = 0;
  for (unsigned warp = 0; warp < gpu::block_threads() / gpu::kWarpThreads; ++warp)
    sum += of_warps[warp];
  return sum;
}

}  // namespace dspack::kernels::cuda::device
