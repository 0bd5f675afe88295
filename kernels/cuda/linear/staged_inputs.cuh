// Rounded input rows in a block's shared memory, for the tensor cores.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/tokens/rounding.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kTileTokens = 8;   // input rows
inline constexpr unsigned kRowPadding = 16;  // bytes, so that eight input rows begin at different banks

/// Input rows with memory in a block of kTokenTiles * kTileTokens, of which `count` exist. A single tile has memory
/// only for existing rows; of several tiles, more than half of whose rows exist, all rows have memory.
template <unsigned kTokenTiles>
__device__ __forceinline__ uint32_t staged_rows(uint32_t count) {
  return kTokenTiles == 1 ? count : kTokenTiles * kTileTokens;
}

/// A part of the columns of some rounded input rows: the rows, then their scales (fp8). The contents of rows without an
/// input do not matter: they affect no other row's sums, and their own are not stored.
struct StagedInputs {
  unsigned char* shared;
  uint32_t columns;  // a multiple of kRoundedBlock
  uint32_t rows;     // rows that have memory

  __device__ __forceinline__ uint32_t row_bytes() const { return columns * 2 + kRowPadding; }
  __device__ __forceinline__ uint32_t blocks() const { return columns / kRoundedBlock; }
  __device__ __forceinline__ unsigned char* at(uint32_t row, uint32_t column) const {
    return shared + row * row_bytes() + column * 2;
  }
  __device__ __forceinline__ float& scale(uint32_t row, uint32_t block) const {
    return reinterpret_cast<float*>(shared + rows * row_bytes())[row * blocks() + block];
  }

  /// Stages the columns from `first` on of `count` rows. Call with every thread of the block; the rows are staged after
  /// the next block barrier. kHasMany: at least as many rows as a block has warps. row_at: the rounded row of an input
  /// row.
  template <bool kFp8, bool kHasMany, class RowAt>
  __device__ __forceinline__ void stage(const RoundedRows& from, uint32_t first, uint32_t count,
                                        const RowAt& row_at) const {
    constexpr uint32_t kPieceValues = 8;  // values in 16 bytes
    const uint32_t there = from.columns - first < columns ? from.columns - first : columns;
    const auto copy_row = [&](uint32_t row, uint32_t thread, uint32_t threads) {
      const uint16_t* values = from.values + uint64_t{row_at(row)} * from.columns + first;
      for (uint32_t value = thread * kPieceValues; value < there; value += threads * kPieceValues)
        gpu::cp_async(at(row, value), values + value, true);
    };
    if constexpr (kHasMany) {  // one warp per row: a row of few columns would leave most of a block idle
      for (uint32_t row = gpu::warp_index(); row < count; row += gpu::block_threads() / gpu::kWarpThreads)
        copy_row(row, gpu::lane_index(), gpu::kWarpThreads);
    } else {
      for (uint32_t row = 0; row < count; ++row)
        copy_row(row, gpu::thread_index(), gpu::block_threads());
    }
    gpu::cp_async_commit_group();
    if constexpr (kFp8) {
      for (uint32_t row = gpu::warp_index(); row < count; row += gpu::block_threads() / gpu::kWarpThreads) {
        const float* scales =
            from.scales + uint64_t{row_at(row)} * (from.columns / kRoundedBlock) + first / kRoundedBlock;
        for (uint32_t block = gpu::lane_index(); block < there / kRoundedBlock; block += gpu::kWarpThreads)
          scale(row, block) = scales[block];
      }
    }
    gpu::cp_async_wait_group<0>();
  }
};

}  // namespace dspack::kernels::cuda::device
