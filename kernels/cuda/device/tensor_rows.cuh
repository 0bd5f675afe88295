// Matrix rows times staged inputs on the tensor cores: what a warp does with 16 or 32 rows while their weights stream
// by. Inputs, rounded to BF16, lie in shared memory (StagedInputs); weights come from global memory straight into the
// registers of the lanes that multiply them (tile.cuh). FP32 sums of a chunk take the scales of its block.
#pragma once

#include "kernels/cuda/device/block_of_chunk.cuh"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/rounding.cuh"
#include "kernels/cuda/device/tile.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kTileRows = 16;    // of a matrix
inline constexpr unsigned kTileTokens = 8;   // input rows
inline constexpr unsigned kRowPadding = 16;  // bytes: eight input rows begin at different banks

/// A part of the columns of some input rows: the rows, then what they are multiples of (fp8).
struct StagedInputs {
  unsigned char* shared;
  uint32_t columns;  // a multiple of kRoundedBlock
  uint32_t rows;

  __device__ __forceinline__ uint32_t row_bytes() const { return columns * 2 + kRowPadding; }
  __device__ __forceinline__ uint32_t blocks() const { return columns / kRoundedBlock; }
  __device__ __forceinline__ unsigned char* at(uint32_t row, uint32_t column) const {
    return shared + row * row_bytes() + column * 2;
  }
  __device__ __forceinline__ float& scale(uint32_t row, uint32_t block) const {
    return reinterpret_cast<float*>(shared + rows * row_bytes())[row * blocks() + block];
  }

  /// Stages the columns from `first` on of rows that are `in` values long; every thread of the block takes part.
  /// `row_at`: where a row is; null: there is none, and zeros are taken.
  template <bool kFp8, class RowAt>
  __device__ __forceinline__ void stage(uint32_t first, uint32_t in, const RowAt& row_at) const {
    const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
    for (uint32_t item = gpu::warp_index(); item < rows * blocks(); item += warps) {
      const uint32_t row = item / blocks();
      const uint32_t block = item % blocks();
      const uint32_t column = first + block * kRoundedBlock;
      const float* from = column < in ? row_at(row) : nullptr;
      stage_rounded_block<kFp8>(from == nullptr ? nullptr : from + column,
                                from == nullptr ? 0 : static_cast<int64_t>(in - column),
                                reinterpret_cast<uint2*>(at(row, block * kRoundedBlock)), &scale(row, block));
    }
  }
};

/// Columns of a matrix that are multiplied together.
struct ColumnRange {
  uint32_t staged_first;  // of the columns that are staged
  uint32_t begin, end;
  uint32_t turn;  // from one chunk of this warp to its next
};

template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, bool kFp8>
struct TensorRows {
  static constexpr unsigned kChunk = 4 * Stored::kPer16;  // columns
  using Sums = float[kRowTiles][kTokenTiles][4];          // as gpu::multiply_tile has them

  // What a lane multiplies: of each row tile its upper and its lower row.
  const uint8_t* data[kRowTiles][2];
  const float* scales[kRowTiles][2];  // null: none

  /// The tile's rows from `first` on. Rows beyond the last are computed as the last, and not to be stored.
  __device__ __forceinline__ void find(unsigned row_tile, const Matrix& matrix, uint32_t first) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      uint32_t row = first + half * 8 + gpu::lane_index() / 4;
      row = row < matrix.out ? row : matrix.out - 1;
      data[row_tile][half] = aligned_row<Stored>(matrix, row);
      scales[row_tile][half] = scales_of(matrix, row);
    }
  }

  /// totals += a chunk, all of whose weights lie in scale block `block` of their rows, times the staged `column`.
  __device__ __forceinline__ void add_chunk(const uint4 (&bytes)[kRowTiles][2], uint32_t block,
                                            const StagedInputs& inputs, uint32_t column, Sums& totals) const {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
    TileWeights<Stored> weights[kRowTiles];
    float scale[kRowTiles][2];
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
      weights[tile] = decode_rows<Stored>(bytes[tile][0], bytes[tile][1]);
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        scale[tile][half] = scales[tile][half] == nullptr ? 1.0F : scales[tile][half][block];
    }
#pragma unroll
    for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
      const auto values = load_inputs<Stored>(
          reinterpret_cast<const uint4*>(inputs.at(tokens * kTileTokens + group, column + quad * Stored::kPer16)));
      float input_scale[2] = {1.0F, 1.0F};
      if constexpr (kFp8) {
#pragma unroll
        for (unsigned i = 0; i < 2; ++i)
          input_scale[i] = inputs.scale(tokens * kTileTokens + 2 * quad + i, column / kRoundedBlock);
      }
#pragma unroll
      for (unsigned tile = 0; tile < kRowTiles; ++tile) {
        float sums[4] = {};
        multiply_chunk<Stored>(sums, weights[tile], values);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          float& total = totals[tile][tokens][i];
          total = gpu::fused_multiply_add(sums[i], scale[tile][i / 2] * input_scale[i % 2], total);
        }
      }
    }
  }

  /// totals += this warp's chunks. kAhead: chunks whose weights are under way before the first is used.
  template <unsigned kAhead>
  __device__ __forceinline__ void add_columns(const Matrix& matrix, const ColumnRange& range,
                                              const StagedInputs& inputs, Sums& totals) const {
    const unsigned quad = gpu::lane_index() % 4;
    const BlockOfChunk<Stored> block_of(matrix);
    for (uint32_t at = range.begin; at < range.end; at += kAhead * range.turn) {
      uint4 bytes[kAhead][kRowTiles][2];
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        // The last chunk of a row may be shorter: its pieces of 16 bytes are whole.
        const uint32_t column = at + ahead * range.turn + quad * Stored::kPer16;
        const bool is_there = at + ahead * range.turn < range.end && column < matrix.in;
#pragma unroll
        for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
          for (unsigned half = 0; half < 2; ++half) {
            const uint8_t* from = data[tile][half] + uint64_t{column} / Stored::kPer16 * 16;
            bytes[ahead][tile][half] = is_there ? gpu::load_streaming(from) : make_uint4(0, 0, 0, 0);
          }
        }
      }
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        const uint32_t column = at + ahead * range.turn;
        if (column < range.end)
          add_chunk(bytes[ahead], block_of(column / Stored::kPer16), inputs, column - range.staged_first, totals);
      }
    }
  }
};

}  // namespace dspack::kernels::cuda::device
