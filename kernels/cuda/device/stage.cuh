// Copies input rows of a matrix-vector product to shared memory.
//
// A chunk of weights (16 bytes, one lane's) is multiplied by an equal number of input values, which are
// Stored::kQuarters pieces of four. Pieces are in the order of the row, but those within one chunk are permuted by XOR.
// So when 32 lanes read piece q of 32 chunks (dot.cuh), every eight of them, whose 128 bytes are one access, touch
// every bank once:
//
//   piece q of chunk c at place   kQuarters c + (q ^ input_swizzle(c))
//
//   chunk   0         1         2         3         4         ..     kQuarters = 4: eight pieces are a row of the banks
//   place   0 1 2 3   0 1 2 3   1 0 3 2   1 0 3 2   2 3 0 1
//
// So the copies of 32 lanes cover 512 contiguous bytes, both in global and in shared memory. (An H200 takes some 2.4
// cycles per 128-byte row of banks that a warp's asynchronous copy touches: with separate places for each lane, that is
// 32 rows, a copy of 28 KB took 5 us.) If rows are aligned, four values are one asynchronous copy, and all copies are
// in flight together.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/matrix.h"

namespace dspack::kernels::cuda::device {

/// Values in 32 chunks.
template <class Stored>
inline constexpr unsigned kGroupValues = gpu::kWarpThreads* Stored::kPer16;

/// XOR mask of the pieces of chunk `chunk`, counted from the beginning of a group.
template <class Stored>
[[nodiscard]] __device__ __forceinline__ uint32_t input_swizzle(uint32_t chunk) {
  static_assert(Stored::kQuarters <= 8);
  constexpr uint32_t kChunksOfRow = 8 / Stored::kQuarters;  // chunks whose pieces fill all banks
  return chunk / kChunksOfRow % Stored::kQuarters;
}

/// Byte offset of a chunk's pieces: piece q is at the offset XOR 16 q. Adding a multiple of 32 chunks adds the same to
/// the offset.
template <class Stored>
[[nodiscard]] __device__ __forceinline__ uint32_t input_place(uint32_t chunk) {
  return (chunk * Stored::kQuarters + input_swizzle<Stored>(chunk)) * static_cast<uint32_t>(sizeof(float4));
}
/// Piece `quarter` of the chunk at `place` of an input row.
[[nodiscard]] __device__ __forceinline__ float4 input_piece(const float4* row, uint32_t place, uint32_t quarter) {
  return *reinterpret_cast<const float4*>(reinterpret_cast<const unsigned char*>(row) + (place ^ quarter * 16));
}

/// Whether every four values of a row, from a multiple of four on, are 16 aligned bytes or beyond its end.
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

/// Stages `groups` groups of `count` input rows of `in` values, from value `first` on: row r begins at shared + r *
/// groups * kQuarters * 32; zeros after a row's end. Call with every thread of the block. Has two barriers: before the
/// first, earlier contents are no longer read; after the second, the inputs have arrived, as have all earlier copies.
/// row_at(r): row of x for input row r; count <= kTokens.
template <class Stored, unsigned kTokens, class RowAt>
__device__ __forceinline__ void stage_inputs(const RowsAt<const float>& x, uint32_t in, uint32_t count,
                                             const RowAt& row_at, uint32_t first, uint32_t groups, float4* shared) {
  const unsigned lane = gpu::lane_index();
  const uint32_t items = groups * Stored::kQuarters;  // pieces of a row, in units of 32
  const bool are_whole = has_whole_fours(x, in);
  gpu::block_barrier();  // every warp has finished the previous contents
  // Rows take turns, so that a row's number is a few bits of an item's.
  for (uint32_t i = gpu::warp_index(); i < items * kTokens; i += gpu::block_threads() / gpu::kWarpThreads) {
    const uint32_t row = i % kTokens;
    const uint32_t item = i / kTokens;
    if (row >= count) continue;
    const uint32_t piece = item * gpu::kWarpThreads + lane;
    const uint32_t at = first + piece * 4;
    float4* to = shared + row * items * gpu::kWarpThreads + (piece ^ input_swizzle<Stored>(piece / Stored::kQuarters));
    const float* from = x.data + row_at(row) * x.stride;
    if (are_whole) {
      gpu::cp_async(to, from + at, at < in);
    } else {
      *to = load_any_four(from, at, in);
    }
  }
  gpu::cp_async_commit_group();
  gpu::cp_async_wait_group<0>();
  gpu::block_barrier();  // the inputs are staged
}

}  // namespace dspack::kernels::cuda::device
