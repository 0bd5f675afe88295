// Dot products of matrix rows with a few input rows, in FP32: the inner loop of every matrix-vector product.
//
// A row is cut into chunks of 16 bytes. Lane l of the `lanes` that share a row takes the chunks l, l + lanes, ...:
//
//   chunk     0   1   2 .. 31 | 32 33 .. 63 | ..          32 chunks: a group
//   lane      0   1   2 .. 31 |  0  1 .. 31 | ..          (lanes = 32)
//
// It sums the products of a chunk (of four-bit codes: of each half) by fma, ascending, from zero; the sum takes
// fma(sum, scale, total). Then the lanes' totals are added 16 apart, 8, 4, 2, 1. None of it depends on how many input
// rows there are.
//
// Inputs lie in shared memory as [group][quarter of a chunk][lane] of four values, so that the 32 lanes of a load touch
// every bank once.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/scales.cuh"
#include "kernels/cuda/matrix.h"

namespace dspack::kernels::cuda::device {

/// Which block of scales the codes of a run lie in, each run (a chunk of 16 bytes, or half of one) whole in one block.
///
/// A division by multiplying, since a real one costs as much as the rest of a chunk's overhead: with m = 2^32 / d
/// rounded up, n m / 2^32 exceeds n / d by less than n / 2^32, which changes no whole part while n d < 2^32 (Granlund
/// and Montgomery, Division by invariant integers using multiplication, 1994). has_aligned_rows sees to that.
template <class Stored>
struct BlockOfRun {
  uint32_t reciprocal;  // 2^32 / runs of a block, rounded up; 0: all is one block
  uint32_t is_run;      // all ones where a block is one run, whose reciprocal would not fit

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

/// Where row `row` begins, in a matrix whose rows are whole pieces of 16 bytes.
template <class Stored>
__device__ __forceinline__ const uint8_t* aligned_row(const Matrix& matrix, uint32_t row) {
  return static_cast<const uint8_t*>(matrix.planes[kCodes]) + uint64_t{row} * (matrix.in / Stored::kPer16 * 16);
}

/// Starts bringing the beginnings of rows [first, first + rows) near, as far as there are so many: of a block's first
/// rows, while it waits for its inputs. `codes`: of a matrix of this form, in rows of whole pieces of 16 bytes.
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
/// Of a block that waits for the launch before: 4 blocks on each of 192 multiprocessors take a third of the smallest
/// cache that such cards have.
inline constexpr uint32_t kEarlyBytes = 16 << 10;

/// Values that 32 chunks hold.
template <class Stored>
inline constexpr unsigned kGroupValues = gpu::kWarpThreads* Stored::kPer16;

/// Puts `groups` groups of an input row, from value `first` on, into shared memory; zeros behind its end. Every thread
/// of the block takes part; a barrier must follow.
template <class Stored>
__device__ __forceinline__ void stage_input(const float* x, uint32_t in, uint32_t first, uint32_t groups,
                                            float4* shared) {
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  const unsigned lane = gpu::lane_index();
  for (uint32_t item = gpu::warp_index(); item < groups * Stored::kQuarters; item += warps) {
    const uint32_t group = item / Stored::kQuarters;
    const uint32_t quarter = item % Stored::kQuarters;
    const uint32_t at = first + group * kGroupValues<Stored> + lane * Stored::kPer16 + quarter * 4;
    float values[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      values[i] = at + i < in ? x[at + i] : 0.0F;
    shared[item * gpu::kWarpThreads + lane] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

/// Runs of a chunk that have a scale each.
template <class Stored>
inline constexpr unsigned kRuns = Stored::kPer16 / Stored::kPerScale;

/// totals[r][t] += scale[r] * (run `run` of chunk r, less zero[r] where codes have zero points, . input t). `inputs`:
/// this lane's place in the chunk's group of the first input row; the next row lies `stride` further.
template <class Stored, unsigned kRows, unsigned kTokens>
__device__ __forceinline__ void add_run(const uint4 (&chunk)[kRows], unsigned run, const float (&scale)[kRows],
                                        const float (&zero)[kRows], const float4* inputs, uint32_t stride,
                                        float (&totals)[kRows][kTokens]) {
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
      const float4 x = inputs[token * stride + quarter * gpu::kWarpThreads];
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) {
        float& sum = sums[row][token];
        sum = gpu::fused_multiply_add(weights[row][0], x.x, sum);
        sum = gpu::fused_multiply_add(weights[row][1], x.y, sum);
        sum = gpu::fused_multiply_add(weights[row][2], x.z, sum);
        sum = gpu::fused_multiply_add(weights[row][3], x.w, sum);
      }
    }
  }
#pragma unroll
  for (unsigned row = 0; row < kRows; ++row) {
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token)
      totals[row][token] = gpu::fused_multiply_add(sums[row][token], scale[row], totals[row][token]);
  }
}

/// For rows whose chunks are not aligned, do not fill 16 bytes, or cross blocks: element by element. Each product,
/// rounded, takes fma with the scale of its own block.
template <class Stored, unsigned kRows, unsigned kTokens>
__device__ __forceinline__ void add_odd_chunk(const Matrix& matrix, const uint32_t (&rows)[kRows], uint32_t chunk,
                                              const float4* inputs, uint32_t stride, float (&totals)[kRows][kTokens]) {
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
        const auto* values = reinterpret_cast<const float*>(inputs + token * stride + i / 4 * gpu::kWarpThreads);
        totals[row][token] = gpu::fused_multiply_add(weight * values[i % 4], scale, totals[row][token]);
      }
    }
  }
}

/// What `lanes` lanes, of which this is number `lane`, add for the chunks [first, end) of their rows; the inputs in
/// shared memory begin with chunk `first`, a multiple of 32. kAligned: every row begins at 16 bytes and every chunk
/// lies in one block.
template <class Stored, bool kAligned, unsigned kRows, unsigned kTokens>
__device__ __forceinline__ void add_chunks(const Matrix& matrix, const uint32_t (&rows)[kRows], uint32_t first,
                                           uint32_t end, uint32_t lane, uint32_t lanes, const float4* inputs,
                                           uint32_t stride, float (&totals)[kRows][kTokens]) {
  const auto place = [&](uint32_t chunk) {
    const uint32_t in_tile = chunk - first;
    return inputs + in_tile / gpu::kWarpThreads * (Stored::kQuarters * gpu::kWarpThreads) + in_tile % gpu::kWarpThreads;
  };
  if constexpr (kAligned) {
    const uint8_t* data[kRows];
    ScalesOf<Stored> scales[kRows];
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      data[row] = aligned_row<Stored>(matrix, rows[row]);
      scales[row].take(matrix, rows[row]);
    }
    const BlockOfRun<Stored> block_of(matrix);
    // Loads of several chunks are under way before the first is used: what hides the memory's latency.
    constexpr unsigned kAhead = 4;
    for (uint32_t chunk = first + lane; chunk < end; chunk += kAhead * lanes) {
      uint4 bytes[kAhead][kRows];
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
        for (unsigned row = 0; row < kRows; ++row) {
          const uint32_t at = chunk + ahead * lanes;
          bytes[ahead][row] = at < end ? gpu::load_streaming(data[row] + uint64_t{at} * 16) : make_uint4(0, 0, 0, 0);
        }
      }
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        const uint32_t at = chunk + ahead * lanes;
        if (at >= end) break;
#pragma unroll
        for (unsigned run = 0; run < kRuns<Stored>; ++run) {
          float scale[kRows];
          float zero[kRows] = {};
#pragma unroll
          for (unsigned row = 0; row < kRows; ++row) {
            const uint32_t block = block_of(at * kRuns<Stored> + run);
            scale[row] = scales[row].at(matrix, block);
            if constexpr (kHasZeros<Stored>) zero[row] = scales[row].zero_at(matrix, block);
          }
          add_run<Stored>(bytes[ahead], run, scale, zero, place(at), stride, totals);
        }
      }
    }
  } else {
    for (uint32_t chunk = first + lane; chunk < end; chunk += lanes)
      add_odd_chunk<Stored>(matrix, rows, chunk, place(chunk), stride, totals);
  }
}

/// The sum over the lanes of a warp, in every lane.
__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
    value += gpu::shuffle_xor(value, apart);
  return value;
}

}  // namespace dspack::kernels::cuda::device
