// What drawing a token is made of: sums of whole numbers, the chunks of a row of logits, and the place in a row sorted
// by value. Threads: all lanes of a warp, or all threads of a block, together.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/order.cuh"
#include "kernels/cuda/sample.h"

namespace dspack::kernels::cuda::device {

// Sums of whole 64-bit numbers over a warp and a block.

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

// The chunks of a row.

/// One row's part of everything.
struct RowView {
  const float* logits;
  const uint32_t* highest;   // [chunks]
  const uint64_t* weights;   // [chunks, kSampleChunk]
  const uint64_t* sums;      // [chunks]
  const uint64_t* heaviest;  // [chunks]
  uint32_t chunks;
  uint32_t cols;
};

__device__ __forceinline__ RowView view_of(const SampleTask& task, uint64_t row) {
  const uint32_t chunks = task.scratch.chunks;
  return {.logits = task.logits.data + row * task.logits.stride,
          .highest = task.scratch.highest + row * chunks,
          .weights = task.scratch.weights + row * chunks * kSampleChunk,
          .sums = task.scratch.sums + row * chunks,
          .heaviest = task.scratch.heaviest + row * chunks,
          .chunks = chunks,
          .cols = task.cols};
}

/// visit(i, is_there) for every place of the chunks for which is_relevant(chunk), by the warps of the block in turn.
template <class IsRelevant, class Visit>
__device__ void walk_chunks(const RowView& row, IsRelevant is_relevant, Visit visit) {
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint32_t first = gpu::warp_index(); first < row.chunks; first += warps * gpu::kWarpThreads) {
    const uint32_t mine = first + gpu::lane_index() * warps;
    unsigned left = gpu::ballot(mine < row.chunks && is_relevant(mine));
    for (; left != 0; left &= left - 1) {
      const uint32_t begin = (first + gpu::lowest_bit(left) * warps) * kSampleChunk;
      for (uint32_t i = begin + gpu::lane_index(); i < begin + kSampleChunk; i += gpu::kWarpThreads)
        visit(i, i < row.cols);
    }
  }
}

/// One block: the first index at which the sum of weights, in the order of index, reaches beyond `place`, which is
/// below the sum of all; one lane stores it. sum_of_chunk(chunk, is_there) is called with a chunk for each lane,
/// weight_at(i, is_there) with a place for each.
template <class SumOfChunk, class WeightAt>
__device__ void store_index_at(const RowView& row, uint64_t place, uint64_t* of_warps, uint32_t* id,
                               SumOfChunk sum_of_chunk, WeightAt weight_at) {
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t of_warp = (row.chunks + warps - 1) / warps;
  const uint32_t begin = gpu::warp_index() * of_warp;
  const uint32_t end = begin + of_warp < row.chunks ? begin + of_warp : row.chunks;
  uint64_t sum = 0;
  for (uint32_t first = begin; first < end; first += gpu::kWarpThreads)
    sum += sum_of_chunk(first + gpu::lane_index(), first + gpu::lane_index() < end);
  sum = sum_of_warp(sum);
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = sum;
  gpu::block_barrier();  // the warps' sums are there
  uint64_t before = 0;
  for (unsigned warp = 0; warp < gpu::warp_index(); ++warp)
    before += of_warps[warp];
  if (place < before || place - before >= sum) return;  // one warp continues
  place -= before;
  uint32_t chunk = begin;
  for (;; chunk += gpu::kWarpThreads) {
    const uint64_t so_far = sum_so_far(sum_of_chunk(chunk + gpu::lane_index(), chunk + gpu::lane_index() < end));
    const unsigned beyond = gpu::ballot(so_far > place);
    const uint64_t all = shuffle_wide(so_far, gpu::kWarpThreads - 1);
    if (beyond == 0) {
      place -= all;
      continue;
    }
    const unsigned lane = gpu::lowest_bit(beyond);
    const uint64_t less = shuffle_wide(so_far, (lane + gpu::kWarpThreads - 1) % gpu::kWarpThreads);
    if (lane > 0) place -= less;
    chunk += lane;
    break;
  }
  for (uint32_t i = chunk * kSampleChunk + gpu::lane_index();; i += gpu::kWarpThreads) {
    const uint64_t so_far = sum_so_far(weight_at(i, i < row.cols));
    const unsigned beyond = gpu::ballot(so_far > place);
    if (beyond != 0) {
      if (gpu::lane_index() == gpu::lowest_bit(beyond)) *id = i;
      return;
    }
    place -= shuffle_wide(so_far, gpu::kWarpThreads - 1);
  }
}

// Where in a row sorted by value, the highest first, the sum of weights reaches beyond a place, found without sorting:
// digit by digit of the values' order, from sums by digit. One block. Weights are whole numbers, so sums know no order.

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
  if (place < before || place - before >= sum) return;  // one lane continues
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
