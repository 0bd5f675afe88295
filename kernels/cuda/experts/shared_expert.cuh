// A gated MLP that every token passes through, in the launch of the routed experts: exact products with the bits of
// linear_exact, since a matrix row is shared by the same number of warps.
#pragma once

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/experts/experts.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kExactWarps = 8;       // warps per block
inline constexpr unsigned kExactRowsOfWarp = 2;  // matrix rows that a warp multiplies at once
inline constexpr unsigned kExactRowsOfBlock = kExactWarps * kExactRowsOfWarp;

/// Writes the outputs of a turn of rows: the sums of the warps that share them, in order.
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
        const float total = gpu::sum_of_warp(totals[matrix][row][token]);
        const unsigned value = (row * kTokens + token) * kMatrices + matrix;
        if (gpu::lane_index() == 0)
          shared[gpu::warp_index() * (kExactRowsOfWarp * kTokens * kMatrices) + value] = total;
      }
    }
  }
  gpu::block_barrier();  // all totals are written before they are read
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
      task.y.data[token * task.y.stride + first_row + row] = Product::finish(sums, task.limit);
  }
  gpu::block_barrier();  // all totals are read before the next rows' are written
}

/// The groups of kExactRowsOfBlock rows that a block takes. Its warps take kExactRowsOfWarp rows at a time, some warps
/// together.
template <class Stored, unsigned kMatrices>
struct SharedRows {
  const Matrix (&matrices)[kMatrices];
  uint32_t group;  // group of the next turn
  uint32_t step;   // distance to the next group
  uint32_t warps_a_row;
  uint32_t turn = 0;  // turn within the group

  [[nodiscard]] __device__ __forceinline__ bool has_more() const { return group * kExactRowsOfBlock < matrices[0].out; }
  /// The warp's first row of the turn, possibly beyond the last row.
  [[nodiscard]] __device__ __forceinline__ uint32_t first_row() const {
    return group * kExactRowsOfBlock + turn * (kExactRowsOfBlock / warps_a_row) +
           gpu::warp_index() / warps_a_row * kExactRowsOfWarp;
  }
  /// Rows beyond the last repeat it; they are computed but not stored.
  __device__ __forceinline__ void find(uint32_t (&rows)[kExactRowsOfWarp]) const {
    const uint32_t out = matrices[0].out;
#pragma unroll
    for (unsigned row = 0; row < kExactRowsOfWarp; ++row)
      rows[row] = first_row() + row < out ? first_row() + row : out - 1;
  }
  __device__ __forceinline__ void go_on() {
    if (++turn < warps_a_row) return;
    turn = 0;
    group += step;
  }
  /// For a WeightStream.
  __device__ __forceinline__ bool next(const uint8_t* (&data)[kMatrices][kExactRowsOfWarp]) {
    if (!has_more()) return false;
    uint32_t rows[kExactRowsOfWarp];
    find(rows);
#pragma unroll
    for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
      for (unsigned row = 0; row < kExactRowsOfWarp; ++row)
        data[matrix][row] = aligned_row<Stored>(matrices[matrix], rows[row]);
    }
    go_on();
    return true;
  }
};

/// Multiplies a block's groups of rows, for all tokens. kPieces: pieces that a lane has in flight. before_inputs: as
/// for a tile of routed experts.
template <class Product, class Stored, unsigned kTokens, unsigned kPieces, class BeforeInputs>
__device__ void multiply_shared(const SharedProduct& task, const RowTurns& turns, const BeforeInputs& before_inputs) {
  constexpr unsigned kMatrices = Product::kMatrices;
  constexpr unsigned kDepth = kPieces / (kMatrices * kExactRowsOfWarp);
  Matrix matrices[kMatrices];
#pragma unroll
  for (unsigned matrix = 0; matrix < kMatrices; ++matrix)
    matrices[matrix] = task.matrices[matrix];
  const uint32_t in = matrices[0].in;
  const uint32_t chunks = (in - 1) / Stored::kPer16 + 1;
  const uint32_t tile_chunks = task.staged * gpu::kWarpThreads;
  const uint32_t stride = task.staged * Stored::kQuarters * gpu::kWarpThreads;
  const unsigned lanes = task.warps_a_row * gpu::kWarpThreads;
  const unsigned lane = gpu::warp_index() % task.warps_a_row * gpu::kWarpThreads + gpu::lane_index();
  auto* inputs = gpu::shared_memory<float4>();
  auto* sums = reinterpret_cast<float*>(inputs + kTokens * stride);
  using Rows = SharedRows<Stored, kMatrices>;
  Rows all{matrices, turns.first, turns.step, task.warps_a_row};
  WeightStream<kMatrices, kExactRowsOfWarp, kDepth, Rows> stream(sums + kExactRowsOfBlock * kMatrices * kTokens, all,
                                                                 chunks, lane, lanes);
  const ScalePlan<Stored> scales(matrices[0]);
  before_inputs();
  bool is_staged = false;
  for (; all.has_more(); all.go_on()) {
    uint32_t rows[kExactRowsOfWarp];
    all.find(rows);
    float totals[kMatrices][kExactRowsOfWarp][kTokens] = {};
    for (uint32_t first = 0; first < chunks; first += tile_chunks) {
      if (!is_staged) {
        stage_inputs<Stored, kTokens>(
            task.x, in, task.tokens, [](uint32_t token) { return uint64_t{token}; }, first * Stored::kPer16,
            task.staged, inputs);
        is_staged = chunks <= tile_chunks;
      }
      const uint32_t end = first + tile_chunks < chunks ? first + tile_chunks : chunks;
      add_share<Stored>(matrices, scales, rows, {first, end, lane, lanes, inputs, stride}, stream, totals);
    }
    finish_shared_rows<Product, kTokens>(task, all.first_row(), totals, sums);
  }
}

}  // namespace dspack::kernels::cuda::device
