// A gated MLP that every token passes through, in the launch of the routed experts on tensor cores: with the bits that
// linear_tensor gives, since the columns of 16 matrix rows are divided into as many parts. A block has fewer warps than
// that one's, so that a warp may sum two of the parts.
#pragma once

#include "kernels/cuda/device/experts.cuh"
#include "kernels/cuda/device/tensor_rows.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kSharedTensorWarps = expert_tensor_warps(1);
inline constexpr unsigned kMostPartsOfWarp = 8 / kSharedTensorWarps;  // linear_tensor has 8 parts at most

/// Bytes of the staged inputs, behind which the parts' sums lie.
__host__ __device__ inline uint32_t shared_tensor_inputs(uint32_t tokens, uint32_t staged) {
  const uint32_t row = staged * 2 + kRowPadding + staged / kRoundedBlock * 4;
  return (tokens * row + 15) / 16 * 16;
}

/// Values of a lane for one part of a row tile.
template <class Product>
inline constexpr unsigned kSharedValues = Product::kMatrices * 4;

template <class Product, class Stored, bool kFp8>
struct SharedTensorTile {
  using Rows = TensorRows<Stored, 1, Product::kMatrices, kFp8>;
  using Sums = typename Rows::Sums;

  const SharedProduct& task;
  Matrix matrices[Product::kMatrices];
  StagedInputs inputs;
  float* sums;       // [row tiles at once, parts, kSharedValues, 32 lanes], behind the inputs
  unsigned sharing;  // warps that share a row tile

  /// The row tile from `first_row` on, as far as this warp sums it.
  __device__ __forceinline__ void multiply(uint32_t first_row, bool& is_staged,
                                           Sums (&totals)[kMostPartsOfWarp]) const {
    Rows rows;
#pragma unroll
    for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix)
      rows.find(matrix, matrices[matrix], first_row);
    const uint32_t in = matrices[0].in;
    for (uint32_t first = 0; first < in; first += inputs.columns) {
      if (!is_staged) {
        gpu::block_barrier();  // every warp is done with what was there before
        inputs.template stage<kFp8>(task.rounded, first, task.tokens, [](uint32_t token) { return token; });
        gpu::block_barrier();  // the inputs are there
        is_staged = in <= inputs.columns;
      }
      const uint32_t end = in - first < inputs.columns ? in : first + inputs.columns;
#pragma unroll
      for (unsigned i = 0; i < kMostPartsOfWarp; ++i) {
        const uint32_t part = gpu::warp_index() % sharing + i * kSharedTensorWarps;
        if (part >= task.warps_a_row) break;
        rows.template add_columns<4>(matrices,
                                     {.staged_first = first,
                                      .begin = first + part * Rows::kChunk,
                                      .end = end,
                                      .turn = task.warps_a_row * Rows::kChunk},
                                     inputs, totals[i]);
      }
    }
  }

  /// Adds the parts up in their order and stores what comes of them.
  __device__ __forceinline__ void finish(uint32_t first_row, Sums (&totals)[kMostPartsOfWarp]) const {
    constexpr unsigned kValues = kSharedValues<Product>;
    const unsigned own = gpu::warp_index() % sharing;
    const unsigned first_part = gpu::warp_index() / sharing * task.warps_a_row;
    const auto place = [&](unsigned part, unsigned i) -> float& {
      return sums[((first_part + part) * kValues + i) * gpu::kWarpThreads + gpu::lane_index()];
    };
#pragma unroll
    for (unsigned i = 0; i < kMostPartsOfWarp; ++i) {
      const unsigned part = own + i * kSharedTensorWarps;
      if (part == 0 || part >= task.warps_a_row) continue;
#pragma unroll
      for (unsigned value = 0; value < kValues; ++value)
        place(part, value) = totals[i][value / 4][0][value % 4];
    }
    gpu::block_barrier();  // all parts are there
    for (unsigned part = 1; own == 0 && part < task.warps_a_row; ++part) {
#pragma unroll
      for (unsigned value = 0; value < kValues; ++value)
        totals[0][value / 4][0][value % 4] += place(part, value);
    }
    if (own == 0) store(first_row, totals[0]);
    gpu::block_barrier();  // and have been read before those of the next rows come
  }

  __device__ __forceinline__ void store(uint32_t first_row, const Sums& total) const {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const uint32_t token = gpu::lane_index() % 4 * 2 + i % 2;
      const uint32_t row = first_row + i / 2 * 8 + gpu::lane_index() / 4;
      if (token >= task.tokens || row >= matrices[0].out) continue;
      float values[Product::kMatrices];
#pragma unroll
      for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix)
        values[matrix] = total[matrix][0][i];
      task.y.data[token * task.y.stride + row] = Product::finish(values);
    }
  }
};

/// A block's groups of `rows_of_group` rows, for all tokens. Its first barrier comes before it writes to shared memory.
template <class Product, class Stored, bool kFp8>
__device__ void multiply_shared_tensor(const SharedProduct& task, const RowTurns& turns, uint32_t rows_of_group) {
  using Tile = SharedTensorTile<Product, Stored, kFp8>;
  Tile tile{.task = task,
            .matrices = {},
            .inputs = {gpu::shared_memory<unsigned char>(), task.staged, task.tokens},
            .sums = nullptr,
            .sharing = task.warps_a_row < kSharedTensorWarps ? task.warps_a_row : kSharedTensorWarps};
  for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix)
    tile.matrices[matrix] = task.matrices[matrix];
  tile.sums =
      reinterpret_cast<float*>(gpu::shared_memory<unsigned char>() + shared_tensor_inputs(task.tokens, task.staged));
  const uint32_t rows_at_once = kSharedTensorWarps / tile.sharing * kTileRows;
  const uint32_t out = task.matrices[0].out;
  bool is_staged = false;
  for (uint32_t group = turns.first; group * rows_of_group < out; group += turns.step) {
    const uint32_t behind = (group + 1) * rows_of_group;
    for (uint32_t row = group * rows_of_group; row < behind && row < out; row += rows_at_once) {
      const uint32_t first_row = row + gpu::warp_index() / tile.sharing * kTileRows;
      typename Tile::Sums totals[kMostPartsOfWarp] = {};
      tile.multiply(first_row, is_staged, totals);
      tile.finish(first_row, totals);
    }
  }
}

}  // namespace dspack::kernels::cuda::device
