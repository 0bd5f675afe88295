// Building blocks for drawing a token: sums of integers, the place of a sum in a list, and the first arrival. Weights
// are integers, so the order of sums does not matter. Threads: call with all lanes of a warp, or all threads of a
// block.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/order.cuh"
#include "kernels/cuda/tokens/sample.h"
#include "kernels/sample_noise.h"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kSampleWarps = 8;  // warps per block
inline constexpr unsigned kSampleThreads = kSampleWarps * gpu::kWarpThreads;

// Sums of 64-bit integers over a warp and a block.

__device__ __forceinline__ uint64_t shuffle_wide(uint64_t value, unsigned lane) {
  const uint32_t low = gpu::shuffle(static_cast<uint32_t>(value), lane);
  const uint32_t high = gpu::shuffle(static_cast<uint32_t>(value >> 32U), lane);
  return uint64_t{high} << 32U | low;
}

/// The sum over all lanes, in every lane.
__device__ __forceinline__ uint64_t sum_of_warp(uint64_t value) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
    value += shuffle_wide(value, gpu::lane_index() ^ apart);
  return value;
}

/// Inclusive prefix sum over lanes.
__device__ __forceinline__ uint64_t sum_so_far(uint64_t value) {
#pragma unroll
  for (unsigned apart = 1; apart < gpu::kWarpThreads; apart *= 2) {
    const uint64_t other = shuffle_wide(value, gpu::lane_index() - apart);
    if (gpu::lane_index() >= apart) value += other;
  }
  return value;
}

/// The sum over all threads, in every thread; `of_warps` has a place for each warp.
__device__ __forceinline__ uint64_t sum_of_block(uint64_t value, uint64_t* of_warps) {
  value = sum_of_warp(value);
  gpu::block_barrier();  // the previous sum has been read
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = value;
  gpu::block_barrier();  // the warps' sums are stored
  uint64_t sum = 0;
#pragma unroll
  for (unsigned warp = 0; warp < kSampleWarps; ++warp)
    sum += of_warps[warp];
  return sum;
}

// Buckets.

inline constexpr unsigned kBucketsOfThread = kSampleBuckets / kSampleThreads;
static_assert(kBucketsOfThread * kSampleThreads == kSampleBuckets);

/// Sums over the buckets before each one; the last element is the total.
using Before = uint64_t[kSampleBuckets + 1];

template <class Number>
__device__ __forceinline__ void add_up(const Number* of_buckets, Before& before, uint64_t* of_warps) {
  const unsigned first = gpu::thread_index() * kBucketsOfThread;
  Number mine[kBucketsOfThread];
#pragma unroll
  for (unsigned i = 0; i < kBucketsOfThread; ++i)
    mine[i] = of_buckets[first + i];
  uint64_t sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kBucketsOfThread; ++i)
    sum += mine[i];
  const uint64_t so_far = sum_so_far(sum);
  gpu::block_barrier();  // the previous sums have been read
  if (gpu::lane_index() == gpu::kWarpThreads - 1) of_warps[gpu::warp_index()] = so_far;
  gpu::block_barrier();  // the warps' sums are stored
  uint64_t at = so_far - sum;
  for (unsigned warp = 0; warp < gpu::warp_index(); ++warp)
    at += of_warps[warp];
#pragma unroll
  for (unsigned i = 0; i < kBucketsOfThread; ++i) {
    before[first + i] = at;
    at += mine[i];
  }
  if (gpu::thread_index() == kSampleThreads - 1) before[kSampleBuckets] = at;
  gpu::block_barrier();  // all sums are stored
}

/// The bucket at which the cumulative sum exceeds `place`, which is below the total. `found`: a word of shared memory.
__device__ __forceinline__ uint32_t bucket_at(const Before& before, uint64_t place, uint32_t* found) {
  gpu::block_barrier();  // the previous result has been read
#pragma unroll
  for (unsigned i = 0; i < kBucketsOfThread; ++i) {
    const unsigned bucket = gpu::thread_index() + i * kSampleThreads;
    if (before[bucket] <= place && place < before[bucket + 1]) *found = bucket;
  }
  gpu::block_barrier();  // the result is stored
  return *found;
}

// Finds, without sorting, the entry of a list in descending order of keys at which the cumulative weight exceeds a
// place: digit by digit of the keys, from sums by digit.

inline constexpr unsigned kDigitBits = 8;
inline constexpr unsigned kDigits = 1U << kDigitBits;

/// Shared memory of a block. A sum is two words, since hardware has no wider atomic addition there.
struct SelectMemory {
  uint32_t low[kDigits];
  uint32_t high[kDigits];
  uint32_t lowest[kSampleWarps];
  uint32_t highest[kSampleWarps];
  uint64_t place;
  uint32_t digit;
};

/// Key and weight of an entry; entries of weight 0 are ignored.
struct Weighed {
  uint32_t key = 0;
  uint64_t weight = 0;
};

/// `place`: relative to the entries of this key.
struct Selected {
  uint32_t key = 0;
  uint64_t place = 0;
};

__device__ __forceinline__ void add_to_digit(SelectMemory& memory, uint32_t digit, uint64_t weight) {
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t before = gpu::add_together(memory.low + digit, low);
  const uint32_t carry = before + low < before ? 1 : 0;
  const uint32_t high = static_cast<uint32_t>(weight >> 32U) + carry;
  if (high != 0) gpu::add_together(memory.high + digit, high);
}

/// Finds the digit, from the highest, that contains the place. Call with one warp.
__device__ __forceinline__ void find_digit(SelectMemory& memory, uint64_t place) {
  constexpr unsigned kOfLane = kDigits / gpu::kWarpThreads;
  const unsigned highest = kDigits - 1 - gpu::lane_index() * kOfLane;
  uint64_t sums[kOfLane];
  uint64_t sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kOfLane; ++i) {
    sums[i] = uint64_t{memory.high[highest - i]} << 32U | memory.low[highest - i];
    sum += sums[i];
  }
  uint64_t before = sum_so_far(sum) - sum;
  if (place < before || place - before >= sum) return;  // one lane continues
  bool is_found = false;
#pragma unroll
  for (unsigned i = 0; i < kOfLane; ++i) {
    if (!is_found && place - before < sums[i]) {
      is_found = true;
      memory.digit = highest - i;
      memory.place = place - before;
    }
    before += sums[i];
  }
}

/// The range in which the participating keys differ: digits from bit `bits` on are those of `highest`.
struct KeySpan {
  unsigned bits = 0;
  uint32_t highest = 0;
};

__device__ __forceinline__ KeySpan span_of_block(SelectMemory& memory, uint32_t lowest, uint32_t highest) {
  lowest = gpu::smallest_of_warp(lowest);
  highest = gpu::largest_of_warp(highest);
  gpu::block_barrier();  // the previous ones have been read
  if (gpu::lane_index() == 0) {
    memory.lowest[gpu::warp_index()] = lowest;
    memory.highest[gpu::warp_index()] = highest;
  }
  gpu::block_barrier();  // the warps' values are stored
#pragma unroll
  for (unsigned warp = 0; warp < kSampleWarps; ++warp) {
    lowest = memory.lowest[warp] < lowest ? memory.lowest[warp] : lowest;
    highest = memory.highest[warp] > highest ? memory.highest[warp] : highest;
  }
  KeySpan span{.bits = 0, .highest = highest};
  while (span.bits < 32 && (lowest ^ highest) >> span.bits != 0)
    span.bits += kDigitBits;
  return span;
}

/// Selects among entries [begin, end), with keys and weights weigh(i). `place` is below the sum of their weights.
template <class Weigh>
__device__ __forceinline__ Selected select_at(SelectMemory& memory, uint32_t begin, uint32_t end, uint64_t place,
                                              Weigh weigh) {
  const uint32_t first = begin + gpu::thread_index();
  const Weighed mine = first < end ? weigh(first) : Weighed{};
  const auto for_each = [&](auto visit) {
    if (mine.weight != 0) visit(mine);
    for (uint32_t i = first + kSampleThreads; i < end; i += kSampleThreads) {
      const Weighed other = weigh(i);
      if (other.weight != 0) visit(other);
    }
  };
  uint32_t lowest = UINT32_MAX;
  uint32_t highest = 0;
  for_each([&](const Weighed& one) {
    lowest = one.key < lowest ? one.key : lowest;
    highest = one.key > highest ? one.key : highest;
  });
  const KeySpan span = span_of_block(memory, lowest, highest);
  unsigned shift = span.bits;
  uint32_t prefix = shift < 32 ? span.highest >> shift << shift : 0;
  while (shift > 0) {
    memory.low[gpu::thread_index()] = 0;
    memory.high[gpu::thread_index()] = 0;
    gpu::block_barrier();  // the sums are zero
    const uint64_t known = uint64_t{prefix} >> shift;
    shift -= kDigitBits;
    for_each([&](const Weighed& one) {
      if (uint64_t{one.key} >> (shift + kDigitBits) == known)
        add_to_digit(memory, one.key >> shift & (kDigits - 1), one.weight);
    });
    gpu::block_barrier();  // the sums are complete
    if (gpu::warp_index() == 0) find_digit(memory, place);
    gpu::block_barrier();  // the digit is stored
    prefix |= memory.digit << shift;
    place = memory.place;
  }
  return {prefix, place};
}
static_assert(kDigits == kSampleThreads, "a thread empties one sum");

// The first arrival.

/// The first arrival over all lanes, in every lane.
__device__ __forceinline__ Arrival first_of_warp(Arrival mine) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const Arrival other{.time = gpu::shuffle_xor(mine.time, apart), .token = gpu::shuffle_xor(mine.token, apart)};
    if (is_before(other, mine)) mine = other;
  }
  return mine;
}

/// The first arrival over all threads, in every thread; `of_warps` has a place for each warp.
__device__ __forceinline__ Arrival first_of_block(Arrival mine, Arrival* of_warps) {
  mine = first_of_warp(mine);
  gpu::block_barrier();  // the previous ones have been read
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = mine;
  gpu::block_barrier();  // the warps' first are stored
#pragma unroll
  for (unsigned warp = 0; warp < kSampleWarps; ++warp)
    if (is_before(of_warps[warp], mine)) mine = of_warps[warp];
  return mine;
}

}  // namespace dspack::kernels::cuda::device
