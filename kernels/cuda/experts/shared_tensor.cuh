// A gated MLP that every token passes through, in the launch of the routed experts on tensor cores: with the bits of
// linear_tensor, since the columns of 16 matrix rows are divided into the same number of parts. A block has fewer warps
// than there, so a warp may sum two parts in turn.
//
// Shared memory of a block that runs all steps for few tokens, routed or shared:
//
//   0                words shared by the block's threads (experts.cuh)
//   kFewRingsAt      a ring of weights for each warp (tile_stream.cuh)
//   kFewInputsAt     staged inputs; after them the parts' sums
#pragma once

#include "kernels/cuda/experts/experts.cuh"
#include "kernels/cuda/linear/tensor_rows.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kSharedTensorWarps = expert_tensor_warps(TensorTokens::few);
inline constexpr unsigned kMaxPartsOfWarp = 8 / kSharedTensorWarps;  // linear_tensor has at most 8 parts

/// Row tiles in a warp's ring: steps of one tile, or half as many of two. 144 KiB for three blocks.
inline constexpr unsigned kFewTilesInRing = 6;
inline constexpr unsigned kFewRingBytes = kTileStreamBytes<1, kFewTilesInRing>;
inline constexpr unsigned kFewRingsAt = 128;
inline constexpr unsigned kFewInputsAt = kFewRingsAt + kSharedTensorWarps * kFewRingBytes;
static_assert((kDoneWord + 1) * sizeof(uint32_t) <= kFewRingsAt);

__device__ __forceinline__ unsigned char* few_ring_of_warp() {
  return gpu::shared_memory<unsigned char>() + kFewRingsAt + gpu::warp_index() * kFewRingBytes;
}

/// Bytes of the staged inputs; the parts' sums follow.
__host__ __device__ inline uint32_t shared_tensor_inputs(uint32_t tokens, uint32_t staged) {
  const uint32_t row = staged * 2 + kRowPadding + staged / kRoundedBlock * 4;
  return (tokens * row + 15) / 16 * 16;
}

inline constexpr unsigned kSharedValues = 4;  // values per lane for one part of a row tile
/// Matrix rows in a row tile.
template <class Product>
inline constexpr uint32_t kRowsOfTile = kTileRows / Product::kMatrices;

template <class Product, class Stored, bool kFp8>
struct SharedTensorTile {
  using Rows = TensorRows<Stored, 1, 1, Product::kMatrices, kFp8>;
  using Sums = typename Rows::Sums;

  const SharedProduct& task;
  Matrix matrices[Product::kMatrices];
  StagedInputs inputs;
  float* sums;       // [row tiles at once, parts, kSharedValues, 32 lanes], after the inputs
  unsigned sharing;  // warps that share a row tile

  /// Multiplies this warp's parts of the row tile from `first_row` on.
  template <class Stream>
  __device__ __forceinline__ void multiply(uint32_t first_row, Stream& stream, bool& is_staged,
                                           Sums (&totals)[kMaxPartsOfWarp]) const {
    Rows rows;
    rows.find(matrices, first_row);
    const BlockOfRun<Stored> block_of(matrices[0]);
    const uint32_t in = matrices[0].in;
    auto ahead = rows.first_scales(matrices, block_of, first_column(), columns_of_turn());
    for (uint32_t first = 0; first < in; first += inputs.columns) {
      if (!is_staged) {
        gpu::block_barrier();  // every warp has finished the previous inputs
        inputs.template stage<kFp8, false>(task.rounded, first, task.tokens, [](uint32_t token) { return token; });
        gpu::block_barrier();  // the inputs are staged
        is_staged = in <= inputs.columns;
      }
      const ColumnRange range{.staged_first = first,
                              .begin = first + first_column(),
                              .end = in - first < inputs.columns ? in : first + inputs.columns,
                              .turn = columns_of_turn()};
      if (task.warps_a_row <= kSharedTensorWarps) {
        rows.template add_steps<1>(matrices, block_of, range, inputs, stream, ahead, totals);
      } else {
        rows.template add_steps<kMaxPartsOfWarp>(matrices, block_of, range, inputs, stream, ahead, totals);
      }
    }
  }
  __device__ __forceinline__ uint32_t first_column() const {
    return gpu::warp_index() % sharing * kStepColumns<Stored>;
  }
  __device__ __forceinline__ uint32_t columns_of_turn() const { return sharing * kStepColumns<Stored>; }

  /// Adds the parts in order and stores the outputs.
  __device__ __forceinline__ void finish(uint32_t first_row, Sums (&totals)[kMaxPartsOfWarp]) const {
    const unsigned own = gpu::warp_index() % sharing;
    const unsigned first_part = gpu::warp_index() / sharing * task.warps_a_row;
    const auto place = [&](unsigned part, unsigned i) -> float& {
      return sums[((first_part + part) * kSharedValues + i) * gpu::kWarpThreads + gpu::lane_index()];
    };
#pragma unroll
    for (unsigned i = 0; i < kMaxPartsOfWarp; ++i) {
      const unsigned part = own + i * kSharedTensorWarps;
      if (part == 0 || part >= task.warps_a_row) continue;
#pragma unroll
      for (unsigned value = 0; value < kSharedValues; ++value)
        place(part, value) = totals[i][0][0][value];
    }
    gpu::block_barrier();  // all parts are stored
    for (unsigned part = 1; own == 0 && part < task.warps_a_row; ++part) {
#pragma unroll
      for (unsigned value = 0; value < kSharedValues; ++value)
        totals[0][0][0][value] += place(part, value);
    }
    if (own == 0) store(first_row, totals[0]);
    gpu::block_barrier();  // all parts have been read before the next rows' are stored
  }

  __device__ __forceinline__ void store(uint32_t first_row, const Sums& total) const {
#pragma unroll
    for (unsigned i = 0; i < 4 / Product::kMatrices; ++i) {
      const uint32_t token = gpu::lane_index() % 4 * 2 + i % 2;
      const uint32_t row = first_row + i / 2 * 8 + gpu::lane_index() / 4;
      if (token >= task.tokens || row >= matrices[0].out) continue;
      float values[Product::kMatrices];
#pragma unroll
      for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix)
        values[matrix] = total[0][0][matrix * 2 + i];
      task.y.data[token * task.y.stride + row] = Product::finish(values, task.limit);
    }
  }
};

/// Multiplies a block's groups of `rows_of_group` rows, for all tokens. before_inputs: called before inputs are read,
/// after the first weights have been requested.
template <class Product, class Stored, bool kFp8, class BeforeInputs>
__device__ void multiply_shared_tensor(const SharedProduct& task, const RowTurns& turns, uint32_t rows_of_group,
                                       const BeforeInputs& before_inputs) {
  using Tile = SharedTensorTile<Product, Stored, kFp8>;
  auto* staged = gpu::shared_memory<unsigned char>() + kFewInputsAt;
  Tile tile{.task = task,
            .matrices = {},
            .inputs = {staged, task.staged, task.tokens},
            .sums = reinterpret_cast<float*>(staged + shared_tensor_inputs(task.tokens, task.staged)),
            .sharing = task.warps_a_row < kSharedTensorWarps ? task.warps_a_row : kSharedTensorWarps};
#pragma unroll
  for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix)
    tile.matrices[matrix] = task.matrices[matrix];
  const uint32_t rows_at_once = kSharedTensorWarps / tile.sharing * kRowsOfTile<Product>;
  const uint32_t out = task.matrices[0].out;
  bool is_staged = false;
  for (uint32_t group = turns.first; group * rows_of_group < out; group += turns.step) {
    const uint32_t begin = group * rows_of_group;
    const uint32_t rows = out - begin < rows_of_group ? out - begin : rows_of_group;
    const uint32_t row_of_warp = begin + gpu::warp_index() / tile.sharing * kRowsOfTile<Product>;
    gpu::warp_barrier();  // the ring is free
    TileStream<Stored, Product::kMatrices, 1, kFewTilesInRing> stream(few_ring_of_warp(), tile.matrices,
                                                                      {.first = row_of_warp,
                                                                       .rows_of_turn = rows_at_once,
                                                                       .sets = (rows - 1) / rows_at_once + 1,
                                                                       .first_column = tile.first_column(),
                                                                       .columns_of_turn = tile.columns_of_turn()});
    if (group == turns.first) before_inputs();
    for (uint32_t row = 0; row < rows; row += rows_at_once) {
      typename Tile::Sums totals[kMaxPartsOfWarp] = {};
      tile.multiply(row_of_warp + row, stream, is_staged, totals);
      tile.finish(row_of_warp + row, totals);
    }
  }
}

}  // namespace dspack::kernels::cuda::device
