// Dot products of matrix rows with a few input rows, in FP32: the inner loop of every matrix-vector product.
//
// A row is divided into chunks of 16 bytes. Lane l of the `lanes` that share a row takes the chunks l, l + lanes, ...:
//
//   chunk     0   1   2 .. 31 | 32 33 .. 63 | ..          32 chunks: a group
//   lane      0   1   2 .. 31 |  0  1 .. 31 | ..          (lanes = 32)
//
// It sums the products of a chunk (for four-bit codes: of each half) by fma, ascending, from zero; then total =
// fma(sum, scale, total). Finally the lanes' totals are added 16 apart, 8, 4, 2, 1. None of this depends on the number
// of input rows.
//
// Weights pass through a ring in shared memory (weight_stream.cuh); inputs are there as staged by stage.cuh.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/device/scales.cuh"
#include "kernels/cuda/device/stage.cuh"
#include "kernels/cuda/device/weight_stream.cuh"

namespace dspack::kernels::cuda::device {

/// Maps runs of codes (a chunk of 16 bytes, or half of one) to scale blocks; each run is within one block.
///
/// Divides by multiplying, since a real division costs as much as the rest of a chunk's overhead: with m = 2^32 / d
/// rounded up, n m / 2^32 exceeds n / d by less than n / 2^32, which does not change the integer part while n d < 2^32
/// (Granlund and Montgomery, Division by invariant integers using multiplication, 1994). has_aligned_rows guarantees
/// that.
template <class Stored>
struct BlockOfRun {
  uint32_t reciprocal;  // 2^32 / runs of a block, rounded up; 0: one block
  uint32_t is_run;      // all ones if a block is one run, whose reciprocal would not fit

  __device__ __forceinline__ explicit BlockOfRun(const Matrix& matrix) {
    const bool is_one_block = matrix.planes[kScales] == nullptr || matrix.block_in >= matrix.in;
    const uint32_t runs = is_one_block ? 0 : matrix.block_in / Stored::kPerScale;
    reciprocal = runs < 2 ? 0 : 0xffffffffU / runs + 1;
    is_run = runs == 1 ? 0xffffffffU : 0;
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t run) const {
    return static_cast<uint32_t>(uint64_t{run} * reciprocal >> 32U) + (run & is_run);
  }
};

/// Places of scales in matrices of one form.
template <class Stored>
struct ScalePlan {
  ScaleRows rows;
  BlockOfRun<Stored> block_of;

  __device__ __forceinline__ explicit ScalePlan(const Matrix& form) : rows(form), block_of(form) {}
};

/// Address of row `row`, in a matrix whose rows are whole 16-byte pieces.
template <class Stored>
__device__ __forceinline__ const uint8_t* aligned_row(const Matrix& matrix, uint32_t row) {
  return static_cast<const uint8_t*>(matrix.planes[kCodes]) + uint64_t{row} * (matrix.in / Stored::kPer16 * 16);
}

/// Prefetches the beginnings of rows [first, first + rows), as far as they exist: a block's first rows, while it waits
/// for its inputs. `codes`: a matrix of this form, with rows of whole 16-byte pieces.
template <class Stored>
__device__ __forceinline__ void prefetch_rows(const Matrix& form, const void* codes, uint32_t first, uint32_t rows,
                                              uint32_t most_bytes) {
  constexpr uint32_t kLineBytes = 128;
  if (first >= form.out) return;
  const uint32_t there = form.out - first < rows ? form.out - first : rows;
  const uint64_t row_bytes = uint64_t{form.in} / Stored::kPer16 * 16;
  const uint64_t share = most_bytes / rows;
  const auto lines = static_cast<uint32_t>(((row_bytes < share ? row_bytes : share) - 1) / kLineBytes + 1);
  const auto* data = static_cast<const unsigned char*>(codes) + first * row_bytes;
  for (uint32_t item = gpu::thread_index(); item < there * lines; item += gpu::block_threads())
    gpu::prefetch(data + item / lines * row_bytes + item % lines * kLineBytes);
}
/// Most bytes for a block that waits for the previous launch: 4 blocks on each of 192 multiprocessors then take a third
/// of the smallest L2 cache of such cards.
inline constexpr uint32_t kEarlyBytes = 16 << 10;

/// Runs in a chunk, each with its own scale.
template <class Stored>
inline constexpr unsigned kRuns = Stored::kPer16 / Stored::kPerScale;

/// totals[r][t] += scale[r] * (run `run` of chunk r, minus zero[r] for codes with zero points, . input t). `inputs`:
/// the first input row in shared memory, rows `stride` apart. `place`: input_place of this lane's chunk.
template <class Stored, unsigned kRows, unsigned kTokens>
__device__ __forceinline__ void add_run(const uint4 (&chunk)[kRows], unsigned run, const float (&scale)[kRows],
                                        const float (&zero)[kRows], const float4* inputs, uint32_t place,
                                        uint32_t stride, float (&totals)[kRows][kTokens]) {
  float sums[kRows][kTokens] = {};
  constexpr unsigned kQuarters = Stored::kQuarters / kRuns<Stored>;
#pragma unroll
  for (unsigned quarter = run * kQuarters; quarter < (run + 1) * kQuarters; ++quarter) {
    float weights[kRows][4];
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      Stored::decode(chunk[row], quarter, weights[row]);
      if constexpr (kHasZeros<Stored>) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          weights[row][i] -= zero[row];
      }
    }
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
      const float4 x = input_piece(inputs + token * stride, place, quarter);
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) {
        float& sum = sums[row][token];
        sum = gpu::fma_rn(weights[row][0], x.x, sum);
        sum = gpu::fma_rn(weights[row][1], x.y, sum);
        sum = gpu::fma_rn(weights[row][2], x.z, sum);
        sum = gpu::fma_rn(weights[row][3], x.w, sum);
      }
    }
  }
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token)
      totals[row][token] = gpu::fma_rn(sums[row][token], scale[row], totals[row][token]);
  }
}

/// For rows whose chunks are unaligned, do not fill 16 bytes, or cross blocks: element by element. Each rounded product
/// is added by fma with the scale of its own block.
template <class Stored, unsigned kRows, unsigned kTokens>
__device__ __forceinline__ void add_odd_chunk(const Matrix& matrix, const uint32_t (&rows)[kRows], uint32_t chunk,
                                              const float4* inputs, uint32_t place, uint32_t stride,
                                              float (&totals)[kRows][kTokens]) {
#pragma unroll
  for (unsigned i = 0; i < Stored::kPer16; ++i) {
    const uint32_t column = chunk * Stored::kPer16 + i;
    if (column >= matrix.in) break;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      float weight = Stored::decode_one(matrix.planes[kCodes], code_index<Stored>(matrix.in, rows[row], column));
      const uint32_t block = matrix.planes[kScales] == nullptr ? 0 : column / matrix.block_in;
      ScalesOf<Stored> scales;
      scales.take(matrix, rows[row]);
      const float scale = scales.at(matrix, block);
      if constexpr (kHasZeros<Stored>) weight -= scales.zero_at(matrix, block);
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token) {
        const float4 x = input_piece(inputs + token * stride, place, i / 4);
        const float value = i % 4 == 0 ? x.x : i % 4 == 1 ? x.y : i % 4 == 2 ? x.z : x.w;
        totals[row][token] = gpu::fma_rn(weight * value, scale, totals[row][token]);
      }
    }
  }
}

/// Rows of a matrix that a warp multiplies, kRows at a time, in each turn of its block.
template <unsigned kRows>
struct WarpRows {
  uint32_t base;   // matrix row of row 0
  uint32_t count;  // rows to multiply
  uint32_t step;   // rows between turns

  /// Matrix rows from `first` on, which must exist; rows beyond the last repeat it, and are computed but not stored.
  __device__ __forceinline__ void find(uint32_t first, uint32_t (&rows)[kRows]) const {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row)
      rows[row] = base + (first + row < count ? first + row : count - 1);
  }
};

/// Same as a WeightStream requests it, for matrices of one form.
template <class Stored, unsigned kMatrices, unsigned kRows>
struct StreamRows {
  const Matrix (&matrices)[kMatrices];
  WarpRows<kRows> all;
  uint32_t first;  // first row of the next turn

  __device__ __forceinline__ bool next(const uint8_t* (&data)[kMatrices][kRows]) {
    if (first >= all.count) return false;
    uint32_t rows[kRows];
    all.find(first, rows);
#pragma unroll
    for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row)
        data[matrix][row] = aligned_row<Stored>(matrices[matrix], rows[row]);
    }
    first += all.step;
    return true;
  }
};

/// A warp's share of the products of its rows with inputs in shared memory: chunks first + lane, first + lane + lanes,
/// ..
struct Share {
  uint32_t first;  // chunk at which the inputs begin, a multiple of 32
  uint32_t end;    // end of the chunks
  uint32_t lane;
  uint32_t lanes;
  const float4* inputs;
  uint32_t stride;  // between input rows
};

/// Stream for weights that are read element by element: nothing is requested ahead.
struct NoStream {};

/// The stream of a warp's rows from `first` on. If kAligned, it requests them from now on: every row is 16-byte aligned
/// and every chunk is within one block (has_aligned_rows). `shared`: the block's stream_bytes.
template <bool kAligned, class Stored, unsigned kDepth, unsigned kMatrices, unsigned kRows>
__device__ __forceinline__ auto stream_of(void* shared, const Matrix (&matrices)[kMatrices], const WarpRows<kRows>& all,
                                          uint32_t first, uint32_t chunks, uint32_t lane, uint32_t lanes) {
  if constexpr (kAligned) {
    using Rows = StreamRows<Stored, kMatrices, kRows>;
    return WeightStream<kMatrices, kRows, kDepth, Rows>(shared, Rows{matrices, all, first}, chunks, lane, lanes);
  } else {
    return NoStream();
  }
}

/// totals[matrix][row][token] += a share of the rows at which the stream is.
template <class Stored, unsigned kMatrices, unsigned kRows, unsigned kTokens, class Stream>
__device__ __forceinline__ void add_share(const Matrix (&matrices)[kMatrices], const ScalePlan<Stored>& plan,
                                          const uint32_t (&rows)[kRows], const Share& share, Stream& stream,
                                          float (&totals)[kMatrices][kRows][kTokens]) {
  ScalesOf<Stored> scales[kMatrices][kRows];
#pragma unroll
  for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row)
      scales[matrix][row].take(matrices[matrix], plan.rows, rows[row]);
  }
  constexpr bool kHasOneScale = kRuns<Stored> == 1;  // per chunk of a row
  uint32_t place = input_place<Stored>(share.lane);
  const uint32_t bytes_of_turn = input_place<Stored>(share.lanes);  // whole groups
  for (uint32_t first = share.first; first < share.end; first += share.lanes, place += bytes_of_turn) {
    const uint32_t chunk = first + share.lane;
#pragma unroll
    for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
      const bool is_there = chunk < share.end;
      float scale[kRows] = {};
      float zero[kRows] = {};
      const auto take_scales = [&](unsigned run) {
        const uint32_t block = plan.block_of(chunk * kRuns<Stored> + run);
#pragma unroll
        for (unsigned row = 0; row < kRows; ++row) {
          scale[row] = scales[matrix][row].at(matrices[matrix], block);
          if constexpr (kHasZeros<Stored>) zero[row] = scales[matrix][row].zero_at(matrices[matrix], block);
        }
      };
      // If a chunk has one scale, it is in flight while the weights are waited for.
      if (kHasOneScale && is_there) take_scales(0);
      uint4 pieces[kRows];
      stream.take(matrix, pieces);
      if (!is_there) continue;
#pragma unroll
      for (unsigned run = 0; run < kRuns<Stored>; ++run) {
        if (!kHasOneScale) take_scales(run);
        add_run<Stored>(pieces, run, scale, zero, share.inputs, place, share.stride, totals[matrix]);
      }
    }
  }
}

/// Same, element by element.
template <class Stored, unsigned kMatrices, unsigned kRows, unsigned kTokens>
__device__ __forceinline__ void add_share(const Matrix (&matrices)[kMatrices], const ScalePlan<Stored>& /*plan*/,
                                          const uint32_t (&rows)[kRows], const Share& share, NoStream& /*stream*/,
                                          float (&totals)[kMatrices][kRows][kTokens]) {
#pragma unroll
  for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
    for (uint32_t chunk = share.first + share.lane; chunk < share.end; chunk += share.lanes)
      add_odd_chunk<Stored>(matrices[matrix], rows, chunk, share.inputs, input_place<Stored>(chunk - share.first),
                            share.stride, totals[matrix]);
  }
}

}  // namespace dspack::kernels::cuda::device
