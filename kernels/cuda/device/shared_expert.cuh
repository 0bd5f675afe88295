// A gated MLP that every token passes through, in the launch of the routed experts: exact products, with the bits that
// linear_exact gives, since a matrix row is shared by as many warps.
#pragma once

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/experts.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kExactWarps = 8;       // of a block
inline constexpr unsigned kExactRowsOfWarp = 2;  // matrix rows that a warp multiplies at once
inline constexpr unsigned kExactRowsOfBlock = kExactWarps * kExactRowsOfWarp;

/// Writes the outputs of a turn of rows: the sums of the warps that share them, in their order.
template <class Product, unsigned kTokens>
__device__ __forceinline__ void finish_shared_rows(const SharedProduct& task, uint32_t first_row,
                                                   const float (&totals)[Product::kMatrices][kExactRowsOfWarp][kTokens],
                                                   float* shared) {
  constexpr unsigned kMatrices = Product::kMatrices;
#pragma unroll
  for (unsigned row = 0; row < kExactRowsOfWarp; ++row) {
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
#pragma unroll
      for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
        const float total = sum_of_warp(totals[matrix][row][token]);
        const unsigned value = (row * kTokens + token) * kMatrices + matrix;
        if (gpu::lane_index() == 0)
          shared[gpu::warp_index() * (kExactRowsOfWarp * kTokens * kMatrices) + value] = total;
      }
    }
  }
  gpu::block_barrier();  // the totals of all warps are written before one of them reads them
  if (gpu::warp_index() % task.warps_a_row == 0 && gpu::lane_index() < kExactRowsOfWarp * kTokens) {
    const unsigned row = gpu::lane_index() / kTokens;
    const unsigned token = gpu::lane_index() % kTokens;
    float sums[kMatrices] = {};
    for (unsigned part = 0; part < task.warps_a_row; ++part) {
#pragma unroll
      for (unsigned matrix = 0; matrix < kMatrices; ++matrix)
        sums[matrix] +=
            shared[((gpu::warp_index() + part) * (kExactRowsOfWarp * kTokens) + gpu::lane_index()) * kMatrices +
                   matrix];
    }
    if (first_row + row < task.matrices[0].out && token < task.tokens)
      task.y.data[token * task.y.stride + first_row + row] = Product::finish(sums);
  }
  gpu::block_barrier();  // and are read before the next rows' are written
}

/// A block's groups of kExactRowsOfBlock rows, for all tokens. Its first barrier comes before it writes to shared
/// memory.
template <class Product, class Stored, unsigned kTokens>
__device__ void multiply_shared(const SharedProduct& task, const RowTurns& turns) {
  constexpr unsigned kMatrices = Product::kMatrices;
  const uint32_t in = task.matrices[0].in;
  const uint32_t out = task.matrices[0].out;
  const uint32_t chunks = (in - 1) / Stored::kPer16 + 1;
  const uint32_t tile_chunks = task.staged * gpu::kWarpThreads;
  const uint32_t stride = task.staged * Stored::kQuarters * gpu::kWarpThreads;
  const unsigned lanes = task.warps_a_row * gpu::kWarpThreads;
  const unsigned lane = gpu::warp_index() % task.warps_a_row * gpu::kWarpThreads + gpu::lane_index();
  auto* inputs = gpu::shared_memory<float4>();
  auto* sums = reinterpret_cast<float*>(inputs + kTokens * stride);
  bool is_staged = false;
  for (uint32_t group = turns.first; group * kExactRowsOfBlock < out; group += turns.step) {
    for (unsigned turn = 0; turn < task.warps_a_row; ++turn) {
      const uint32_t first_row = group * kExactRowsOfBlock + turn * (kExactRowsOfBlock / task.warps_a_row) +
                                 gpu::warp_index() / task.warps_a_row * kExactRowsOfWarp;
      uint32_t rows[kExactRowsOfWarp];
#pragma unroll
      for (unsigned row = 0; row < kExactRowsOfWarp; ++row)
        rows[row] = first_row + row < out ? first_row + row : out - 1;  // computed, not stored
      float totals[kMatrices][kExactRowsOfWarp][kTokens] = {};
      for (uint32_t first = 0; first < chunks; first += tile_chunks) {
        if (!is_staged) {
          gpu::block_barrier();  // every warp is done with what was there before
          for (unsigned token = 0; token < kTokens && token < task.tokens; ++token) {
            stage_input<Stored>(task.x.data + token * task.x.stride, in, first * Stored::kPer16, task.staged,
                                inputs + token * stride);
          }
          gpu::block_barrier();  // the input is there
          is_staged = chunks <= tile_chunks;
        }
        const uint32_t end = first + tile_chunks < chunks ? first + tile_chunks : chunks;
#pragma unroll
        for (unsigned matrix = 0; matrix < kMatrices; ++matrix)
          add_chunks<Stored, true>(task.matrices[matrix], rows, first, end, lane, lanes, inputs, stride,
                                   totals[matrix]);
      }
      finish_shared_rows<Product, kTokens>(task, first_row, totals, sums);
    }
  }
}

}  // namespace dspack::kernels::cuda::device
