// Where in a row sorted by value, the highest first, the sum of weights reaches beyond a place, found without sorting:
// digit by digit of the values' order, from sums by digit. One block. Weights are whole numbers, so sums know no order.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/warp_sums.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kDigitBits = 8;
inline constexpr unsigned kDigits = 1U << kDigitBits;

/// Shared memory of a block.
struct SelectMemory {
  uint64_t sums[kDigits];
  uint64_t place;
  uint32_t digit;
};

/// `order` is that of the value at the place; `place`, what is left of it after all that is higher.
struct Selected {
  uint32_t order = 0;
  uint64_t place = 0;
};

/// A warp adds each lane's weight to the sum of its digit, digit by digit: most lanes have one of a few.
__device__ __forceinline__ void add_by_digit(uint64_t* sums, uint32_t digit, uint64_t weight, bool takes_part) {
  for (unsigned left = gpu::ballot(takes_part); left != 0;) {
    const unsigned leader = gpu::lowest_bit(left);
    const uint32_t of_leader = gpu::shuffle(digit, leader);
    const bool is_same = takes_part && digit == of_leader;
    const unsigned same = gpu::ballot(is_same);
    const bool is_alone = (same & (same - 1)) == 0;
    const uint64_t sum = is_alone ? weight : sum_of_warp(is_same ? weight : 0);
    if (gpu::lane_index() == leader) gpu::add_together(sums + digit, sum);
    left &= ~same;
  }
}

/// One warp: in which digit, the highest first, the place lies.
__device__ __forceinline__ void find_digit(SelectMemory& memory, uint64_t place) {
  constexpr unsigned kOfLane = kDigits / gpu::kWarpThreads;
  const unsigned highest = kDigits - 1 - gpu::lane_index() * kOfLane;
  uint64_t sum = 0;
  for (unsigned i = 0; i < kOfLane; ++i)
    sum += memory.sums[highest - i];
  uint64_t before = sum_so_far(sum) - sum;
  if (place < before || place - before >= sum) return;  // one lane goes on
  unsigned digit = highest;
  while (place - before >= memory.sums[digit])
    before += memory.sums[digit--];
  memory.digit = digit;
  memory.place = place - before;
}

/// `place` is below the sum of all weights. walk(visit) calls visit(order, weight, takes_part) for all values, with all
/// lanes of a warp together.
template <class Walk>
__device__ Selected select_at(SelectMemory& memory, uint64_t place, Walk walk) {
  uint32_t prefix = 0;
  for (unsigned shift = 32; shift > 0;) {
    for (unsigned i = gpu::thread_index(); i < kDigits; i += gpu::block_threads())
      memory.sums[i] = 0;
    gpu::block_barrier();  // the sums are empty
    const uint64_t known = uint64_t{prefix} >> shift;
    shift -= kDigitBits;
    walk([&](uint32_t order, uint64_t weight, bool takes_part) {
      const bool fits = takes_part && uint64_t{order} >> (shift + kDigitBits) == known;
      add_by_digit(memory.sums, order >> shift & (kDigits - 1), weight, fits);
    });
    gpu::block_barrier();  // they are complete
    if (gpu::warp_index() == 0) find_digit(memory, place);
    gpu::block_barrier();  // the digit is known
    prefix |= memory.digit << shift;
    place = memory.place;
  }
  return {prefix, place};
}

}  // namespace dspack::kernels::cuda::device
