// Input rows of a matrix-vector product on their way to shared memory.
//
// A chunk of weights (16 bytes, a lane's) meets as many input values, which are Stored::kQuarters pieces of four.
// Pieces lie in the order of the row, but those of one chunk are exchanged among each other by XOR, so that of 32 lanes
// which read piece q of 32 chunks (dot.cuh) every eight, whose 128 bytes are one access, touch every bank once:
//
//   piece q of chunk c at place   kQuarters c + (q ^ input_swizzle(c))
//
//   chunk   0         1         2         3         4         ..     kQuarters = 4: eight pieces are a row of the banks
//   place   0 1 2 3   0 1 2 3   1 0 3 2   1 0 3 2   2 3 0 1
//
// So the copies of 32 lanes are of 512 bytes that lie together, here and there. (An H200 takes some 2.4 cycles for each
// 128-byte row of the banks that an asynchronous copy of a warp touches: 32 rows, where each lane's place was apart,
// made 5 us of a copy of 28 KB.) Where rows allow, four values are one asynchronous copy, and all of them are under way
// together.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/matrix.h"

namespace dspack::kernels::cuda::device {

/// Values that 32 chunks hold.
template <class Stored>
inline constexpr unsigned kGroupValues = gpu::kWarpThreads* Stored::kPer16;

/// What the pieces of chunk `chunk`, counted from the beginning of a group, are exchanged by.
template <class Stored>
[[nodiscard]] __device__ __forceinline__ uint32_t input_swizzle(uint32_t chunk) {
  static_assert(Stored::kQuarters <= 8);
  constexpr uint32_t kChunksOfRow = 8 / Stored::kQuarters;  // whose pieces fill all banks
  return chunk / kChunksOfRow % Stored::kQuarters;
}

/// Where the pieces of a chunk begin, in bytes: piece q lies at the place XOR 16 q. A multiple of 32 chunks takes
/// another chunk's place as far on.
template <class Stored>
[[nodiscard]] __device__ __forceinline__ uint32_t input_place(uint32_t chunk) {
  return (chunk * Stored::kQuarters + input_swizzle<Stored>(chunk)) * static_cast<uint32_t>(sizeof(float4));
}
/// Piece `quarter` of the chunk at `place` of an input row.
[[nodiscard]] __device__ __forceinline__ float4 input_piece(const float4* row, uint32_t place, uint32_t quarter) {
  return *reinterpret_cast<const float4*>(reinterpret_cast<const unsigned char*>(row) + (place ^ quarter * 16));
}

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
  const unsigned lane = gpu::lane_index();
  const uint32_t items = groups * Stored::kQuarters;  // pieces of a row, 32 at a time
  const bool are_whole = has_whole_fours(x, in);
  gpu::block_barrier();  // every warp is done with what was there before
  // Rows by turns, so that a row's number is a few bits of an item's.
  for (uint32_t i = gpu::warp_index(); i < items * kTokens; i += gpu::block_threads() / gpu::kWarpThreads) {
    const uint32_t row = i % kTokens;
    const uint32_t item = i / kTokens;
    if (row >= count) continue;
    const uint32_t piece = item * gpu::kWarpThreads + lane;
    const uint32_t at = first + piece * 4;
    float4* to = shared + row * items * gpu::kWarpThreads + (piece ^ input_swizzle<Stored>(piece / Stored::kQuarters));
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
