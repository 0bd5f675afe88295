// A block has 8 warps; `warps_a_row` of them share the columns of the same 16 (or 32) matrix rows, by chunks in turn.
// The inputs of the block, 8 to 64 rows of them rounded to BF16, lie in shared memory, a tile of columns at a time;
// weights come from global memory straight into the registers of the lanes that multiply them (device/tile.cuh).
//
//                 columns ->   chunk 0    1    2    3    4 ..
//   16 matrix rows   warp          0    1    2    3    0 ..      warps_a_row = 4
//   next 16          warp          4    5    6    7    4 ..
#include "kernels/cuda/linear_tensor.h"

#include "kernels/cuda/device/tensor_rows.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
using device::kTileRows;
using device::kTileTokens;

struct TensorPlan {
  unsigned warps_a_row;
  uint32_t tile_columns;
};

template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, bool kFp8>
struct TensorBlock {
  static constexpr unsigned kTokens = kTokenTiles * kTileTokens;
  using Rows = device::TensorRows<Stored, kTokenTiles, kRowTiles, kFp8>;
  using Sums = typename Rows::Sums;

  const LinearTask& task;
  const TensorPlan& plan;
  uint32_t first_token;
  device::StagedInputs inputs;

  /// The inputs' columns from `first` on.
  __device__ void stage(uint32_t first) const {
    inputs.template stage<kFp8>(first, task.weight.in, [&](uint32_t token) {
      return first_token + token < task.rows ? task.x.data + (first_token + token) * task.x.stride : nullptr;
    });
  }

  __device__ void store(uint32_t first_row, const Sums& totals) const {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const uint32_t row = first_row + tile * kTileRows + i / 2 * 8 + group;
          const uint32_t token = first_token + tokens * kTileTokens + 2 * quad + i % 2;
          if (row < task.weight.out && token < task.rows)
            task.y.data[token * task.y.stride + row] = totals[tile][tokens][i];
        }
      }
    }
  }

  /// Adds up what the warps of a row have, in their order, in the first of them. The inputs are no longer needed.
  __device__ void add_up(unsigned part, Sums& totals) const {
    constexpr unsigned kValues = kRowTiles * kTokenTiles * 4;
    auto* sums = reinterpret_cast<float*>(inputs.shared);
    float* flat = &totals[0][0][0];
    gpu::block_barrier();  // every warp is done with the inputs, which lie where the sums go
    if (part > 0) {
      for (unsigned i = 0; i < kValues; ++i)
        sums[(gpu::warp_index() * kValues + i) * gpu::kWarpThreads + gpu::lane_index()] = flat[i];
    }
    gpu::block_barrier();  // all sums are there
    if (part > 0) return;
    for (unsigned other = 1; other < plan.warps_a_row; ++other) {
      for (unsigned i = 0; i < kValues; ++i)
        flat[i] += sums[((gpu::warp_index() + other) * kValues + i) * gpu::kWarpThreads + gpu::lane_index()];
    }
  }
};

template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, bool kFp8>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads) tensor_kernel(LinearTask task, TensorPlan plan) {
  using Block = TensorBlock<Stored, kTokenTiles, kRowTiles, kFp8>;
  const uint64_t token_group = gpu::block_index().y + uint64_t{gpu::block_index().z} * gpu::grid_blocks().y;
  if (token_group * Block::kTokens >= task.rows) return;
  const Block block{
      .task = task,
      .plan = plan,
      .first_token = static_cast<uint32_t>(token_group * Block::kTokens),
      .inputs = {.shared = gpu::shared_memory<unsigned char>(), .columns = plan.tile_columns, .rows = Block::kTokens}};
  const unsigned part = gpu::warp_index() % plan.warps_a_row;
  const uint32_t first_row =
      (gpu::block_index().x * (kWarpsOfBlock / plan.warps_a_row) + gpu::warp_index() / plan.warps_a_row) * kRowTiles *
      kTileRows;
  typename Block::Rows rows;
#pragma unroll
  for (unsigned tile = 0; tile < kRowTiles; ++tile)
    rows.find(tile, task.weight, first_row + tile * kTileRows);
  typename Block::Sums totals = {};
  for (uint32_t first = 0; first < task.weight.in; first += plan.tile_columns) {
    gpu::block_barrier();  // every warp is done with the tile before
    block.stage(first);
    gpu::block_barrier();  // the tile is there
    const uint32_t end = task.weight.in - first < plan.tile_columns ? task.weight.in : first + plan.tile_columns;
    constexpr unsigned kAhead = kTokenTiles == 1 ? 4 : 2;
    rows.template add_columns<kAhead>(task.weight,
                                      {.staged_first = first,
                                       .begin = first + part * Block::Rows::kChunk,
                                       .end = end,
                                       .turn = plan.warps_a_row * Block::Rows::kChunk},
                                      block.inputs, totals);
  }
  if (plan.warps_a_row > 1) block.add_up(part, totals);
  if (part == 0) block.store(first_row, totals);
}

template <class Stored, bool kFp8>
void run(gpu::Stream& stream, const LinearTask& task) {
  const TensorChoice choice = choose_linear_tensor(task.weight.coding, task.weight.out, task.weight.in, task.rows);
  const TensorPlan plan{.warps_a_row = choice.warps_a_row, .tile_columns = choice.tile_columns};
  switch (choice.token_tiles) {
    case 1: return gpu::launch(stream, choice.shape, tensor_kernel<Stored, 1, 1, kFp8>, task, plan);
    case 2: return gpu::launch(stream, choice.shape, tensor_kernel<Stored, 2, 1, kFp8>, task, plan);
    case 4: return gpu::launch(stream, choice.shape, tensor_kernel<Stored, 4, 2, kFp8>, task, plan);
    default: return gpu::launch(stream, choice.shape, tensor_kernel<Stored, 8, 2, kFp8>, task, plan);
  }
}

}  // namespace

void linear_tensor(gpu::Stream& stream, const LinearTask& task, Precision precision) {
  if (task.rows == 0 || task.weight.out == 0) return;
  if (task.weight.coding == Coding::bf16) return run<device::StoredBf16, false>(stream, task);
  precision == Precision::fp8 ? run<device::StoredF8, true>(stream, task) : run<device::StoredF8, false>(stream, task);
}

}  // namespace dspack::kernels::cuda
