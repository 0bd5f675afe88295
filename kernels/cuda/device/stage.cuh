// Input rows of a matrix-vector product on their way to shared memory.
//
// They lie there as [group][quarter of a chunk][lane] of four values, so that the 32 lanes of a load touch every bank
// once (dot.cuh: a lane multiplies its own chunk). Where rows allow, four values are one asynchronous copy, and all of
// them are under way together.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/matrix.h"

namespace dspack::kernels::cuda::device {

/// Values that 32 chunks hold.
template <class Stored>
inline constexpr unsigned kGroupValues = gpu::kWarpThreads* Stored::kPer16;

/// Whether four values of a row, from a multiple of four on, are 16 aligned bytes or lie behind its end.
[[nodiscard]] __device__ __forceinline__ bool has_whole_fours(const RowsAt<const float>& x, uint32_t in) {
  return reinterpret_cast<uint64_t>(x.data) % 16 == 0 && x.stride % 4 == 0 && in % 4 == 0;
}

/// Values [at, at + 4) of a row of `in`; zeros after its end.
[[nodiscard]] __device__ __forceinline__ float4 load_any_four(const float* row, uint32_t at, uint32_t in) {
  float values[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    values[i] = at + i < in ? row[at + i] : 0.0F;
  return make_float4(values[0], values[1], values[2], values[3]);
}

/// Puts `groups` groups of `count` input rows of `in` values, from value `first` on, into shared memory, row r from
/// shared + r * groups * kQuarters * 32 on; zeros after a row's end. Every thread of the block takes part. Two
/// barriers: what lay there is no longer read, and the inputs are there; what else was asked for has arrived, too.
/// row_at(r): which row of x input row r is; count <= kTokens.
template <class Stored, unsigned kTokens, class RowAt>
__device__ __forceinline__ void stage_inputs(const RowsAt<const float>& x, uint32_t in, uint32_t count,
                                             const RowAt& row_at, uint32_t first, uint32_t groups, float4* shared) {
  // Two lanes copy 32 bytes of a row together, which is what memory is read by: 16 chunks an item.
  constexpr unsigned kLanesOfChunk = Stored::kQuarters > 1 ? 2 : 1;
  constexpr unsigned kChunks = gpu::kWarpThreads / kLanesOfChunk;
  constexpr unsigned kItems = Stored::kQuarters;  // of a group: kChunks chunks, kLanesOfChunk quarters
  const unsigned lane = gpu::lane_index();
  const uint32_t items = groups * kItems;
  const bool are_whole = has_whole_fours(x, in);
  gpu::block_barrier();  // every warp is done with what was there before
  // Rows by turns, so that a row's number is a few bits of an item's.
  for (uint32_t i = gpu::warp_index(); i < items * kTokens; i += gpu::block_threads() / gpu::kWarpThreads) {
    const uint32_t row = i % kTokens;
    const uint32_t item = i / kTokens;
    if (row >= count) continue;
    const uint32_t chunk = item % kLanesOfChunk * kChunks + lane / kLanesOfChunk;  // of the group
    const uint32_t quarter = item % kItems / kLanesOfChunk * kLanesOfChunk + lane % kLanesOfChunk;
    const uint32_t at = first + item / kItems * kGroupValues<Stored> + chunk * Stored::kPer16 + quarter * 4;
    float4* to = shared + (row * items + item / kItems * kItems + quarter) * gpu::kWarpThreads + chunk;
    const float* from = x.data + row_at(row) * x.stride;
    if (are_whole) {
      gpu::copy_async(to, from + at, at < in);
    } else {
      *to = load_any_four(from, at, in);
    }
  }
  gpu::copy_commit();
  gpu::copy_wait<0>();
  gpu::block_barrier();  // the inputs are there
}

}  // namespace dspack::kernels::cuda::device
