// A block has 8 warps; `warps_a_row` of them share the columns of the same 16 (or 32) matrix rows, by chunks in turn.
// The inputs of the block, 8 to 64 rows of them rounded to BF16, lie in shared memory, a tile of columns at a time;
// weights come from global memory straight into the registers of the lanes that multiply them (device/tile.cuh).
//
//                 columns ->   chunk 0    1    2    3    4 ..
//   16 matrix rows   warp          0    1    2    3    0 ..      warps_a_row = 4
//   next 16          warp          4    5    6    7    4 ..
#include "kernels/cuda/linear_tensor.h"

#include "kernels/cuda/device/block_of_chunk.cuh"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/rounding.cuh"
#include "kernels/cuda/device/tile.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kTileRows = 16;
constexpr unsigned kTileTokens = 8;
constexpr unsigned kRowPaddingBytes = 16;

struct TensorPlan {
  unsigned warps_a_row;
  uint32_t tile_columns;
};

template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, bool kFp8>
struct TensorBlock {
  static constexpr unsigned kTokens = kTokenTiles * kTileTokens;
  static constexpr unsigned kChunk = 4 * Stored::kPer16;  // columns

  using Sums = float[kRowTiles][kTokenTiles][4];

  const LinearTask& task;
  const TensorPlan& plan;
  uint32_t first_token;
  unsigned char* shared;

  __device__ uint32_t row_bytes() const { return plan.tile_columns * 2 + kRowPaddingBytes; }
  __device__ float* input_scales() const { return reinterpret_cast<float*>(shared + kTokens * row_bytes()); }
  __device__ uint32_t scales_a_row() const { return plan.tile_columns / device::kRoundedBlock; }

  /// The inputs' columns from `first` on. Input rows that there are not become zeros.
  __device__ void stage(uint32_t first) const {
    const uint32_t blocks = scales_a_row();
    for (uint32_t item = gpu::warp_index(); item < kTokens * blocks; item += kWarpsOfBlock) {
      const uint32_t token = item / blocks;
      const uint32_t column = first + item % blocks * device::kRoundedBlock;
      const bool is_there = first_token + token < task.rows && column < task.weight.in;
      const float* from = is_there ? task.x.data + (first_token + token) * task.x.stride + column : task.x.data;
      device::stage_rounded_block<kFp8>(
          from, is_there ? static_cast<int64_t>(task.weight.in - column) : 0,
          reinterpret_cast<uint2*>(shared + token * row_bytes() + item % blocks * device::kRoundedBlock * 2),
          input_scales() + token * blocks + item % blocks);
    }
  }

  /// The rows of this lane, in the upper and lower half of each tile.
  struct RowsOfLane {
    const uint8_t* data[kRowTiles][2];
    const float* scales[kRowTiles][2];  // null: none
  };

  /// Rows that there are not are computed as the last one, and not stored.
  __device__ __forceinline__ RowsOfLane find_rows(uint32_t first_row) const {
    RowsOfLane rows;
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        uint32_t row = first_row + tile * kTileRows + half * 8 + gpu::lane_index() / 4;
        row = row < task.weight.out ? row : task.weight.out - 1;
        rows.data[tile][half] =
            static_cast<const uint8_t*>(task.weight.data) + uint64_t{row} * task.weight.in * Stored::kBytes;
        rows.scales[tile][half] = device::scales_of(task.weight, row);
      }
    }
    return rows;
  }

  /// totals += the chunk at `column` of the tile, all of whose weights lie in scale block `block` of their row.
  __device__ __forceinline__ void add_chunk(const uint4 (&bytes)[kRowTiles][2], const RowsOfLane& rows, uint32_t block,
                                            uint32_t column, Sums& totals) const {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
    device::TileWeights<Stored> weights[kRowTiles];
    float scales[kRowTiles][2];
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
      weights[tile] = device::decode_rows<Stored>(bytes[tile][0], bytes[tile][1]);
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        scales[tile][half] = rows.scales[tile][half] == nullptr ? 1.0F : rows.scales[tile][half][block];
    }
#pragma unroll
    for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
      const auto inputs = device::load_inputs<Stored>(reinterpret_cast<const uint4*>(
          shared + (tokens * kTileTokens + group) * row_bytes() + (column + quad * Stored::kPer16) * 2));
      float input_scale[2] = {1.0F, 1.0F};
      if constexpr (kFp8) {
#pragma unroll
        for (unsigned i = 0; i < 2; ++i)
          input_scale[i] =
              input_scales()[(tokens * kTileTokens + 2 * quad + i) * scales_a_row() + column / device::kRoundedBlock];
      }
#pragma unroll
      for (unsigned tile = 0; tile < kRowTiles; ++tile) {
        float sums[4] = {};
        device::multiply_chunk<Stored>(sums, weights[tile], inputs);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          float& total = totals[tile][tokens][i];
          total = gpu::fused_multiply_add(sums[i], scales[tile][i / 2] * input_scale[i % 2], total);
        }
      }
    }
  }

  /// The chunks of the tile [first, end) of columns that are this warp's.
  __device__ void add_tile(uint32_t first, uint32_t end, const RowsOfLane& rows, unsigned part, Sums& totals) const {
    const unsigned quad = gpu::lane_index() % 4;
    const uint32_t turn = plan.warps_a_row * kChunk;
    const device::BlockOfChunk<Stored> block_of(task.weight);
    // Weights of several chunks are under way before the first is used.
    constexpr unsigned kAhead = kTokenTiles == 1 ? 4 : 2;
    for (uint32_t at = first + part * kChunk; at < end; at += kAhead * turn) {
      uint4 bytes[kAhead][kRowTiles][2];
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        // The last chunk of a row may be shorter: its pieces of 16 bytes are whole.
        const uint32_t column = at + ahead * turn + quad * Stored::kPer16;
        const bool is_there = at + ahead * turn < end && column < task.weight.in;
#pragma unroll
        for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
          for (unsigned half = 0; half < 2; ++half) {
            const uint8_t* data = rows.data[tile][half] + uint64_t{column} * Stored::kBytes;
            bytes[ahead][tile][half] = is_there ? gpu::load_streaming(data) : make_uint4(0, 0, 0, 0);
          }
        }
      }
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        const uint32_t column = at + ahead * turn;
        if (column < end) add_chunk(bytes[ahead], rows, block_of(column / Stored::kPer16), column - first, totals);
      }
    }
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
    auto* sums = reinterpret_cast<float*>(shared);
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
  const Block block{.task = task,
                    .plan = plan,
                    .first_token = static_cast<uint32_t>(token_group * Block::kTokens),
                    .shared = gpu::shared_memory<unsigned char>()};
  const unsigned part = gpu::warp_index() % plan.warps_a_row;
  const uint32_t first_row =
      (gpu::block_index().x * (kWarpsOfBlock / plan.warps_a_row) + gpu::warp_index() / plan.warps_a_row) * kRowTiles *
      kTileRows;
  const typename Block::RowsOfLane rows = block.find_rows(first_row);
  typename Block::Sums totals = {};
  for (uint32_t first = 0; first < task.weight.in; first += plan.tile_columns) {
    gpu::block_barrier();  // every warp is done with the tile before
    block.stage(first);
    gpu::block_barrier();  // the tile is there
    const uint32_t end = task.weight.in - first < plan.tile_columns ? task.weight.in : first + plan.tile_columns;
    block.add_tile(first, end, rows, part, totals);
  }
  if (plan.warps_a_row > 1) block.add_up(part, totals);
  if (part == 0) block.store(first_row, totals);
}

template <class Stored, bool kFp8>
void run(gpu::Stream& stream, const LinearTask& task) {
  const TensorChoice choice = choose_linear_tensor(task.dtype, task.weight.out, task.weight.in, task.rows);
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
  const bool is_fp8 = precision == Precision::fp8;
  if (task.dtype == Dtype::f8_e4m3) {
    is_fp8 ? run<device::StoredF8, true>(stream, task) : run<device::StoredF8, false>(stream, task);
  } else {
    is_fp8 ? run<device::StoredBf16, true>(stream, task) : run<device::StoredBf16, false>(stream, task);
  }
}

}  // namespace dspack::kernels::cuda
