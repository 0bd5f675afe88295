// Plain: a block takes 32 rows of one head, four a warp, and up to eight tokens, whose inputs lie in shared memory.
// Lanes share a row chunk by chunk (dot.cuh).
//
// Transposed: a block takes 32 chunks of columns of one head, one a lane, and its warps take the head's rows by turns:
//
//   warp w   rows w, w + 8, w + 16, ..     sums[token][column of the chunk] += (input * scale) * weight, by fma
//
// Then the sums of the eight warps are added in their order.
#include "kernels/cuda/head_linear.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/elementwise.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kHeadWarps = 8;       // of a block
constexpr unsigned kHeadRowsOfWarp = 4;  // plain: matrix rows that a warp multiplies at once
constexpr unsigned kHeadRowTile = 256;   // transposed: inputs, each of a matrix row, in shared memory at once
constexpr unsigned kThreads = kHeadWarps * gpu::kWarpThreads;

struct Part {
  uint32_t head;
  uint32_t block;  // of the head
  uint32_t first_token;
  uint32_t tokens;  // 0: none is left
};

template <unsigned kTokens>
__device__ __forceinline__ Part part_of_block(const HeadLinearTask& task, uint32_t blocks_a_head) {
  const uint64_t group = gpu::block_index().y + uint64_t{gpu::block_index().z} * gpu::grid_blocks().y;
  const uint64_t first = group * kTokens;
  const uint64_t left = first < task.rows ? task.rows - first : 0;
  return {gpu::block_index().x / blocks_a_head, gpu::block_index().x % blocks_a_head, static_cast<uint32_t>(first),
          static_cast<uint32_t>(left < kTokens ? left : kTokens)};
}

__device__ __forceinline__ const float* input_of(const HeadLinearTask& task, uint32_t token, uint32_t head) {
  return task.x + uint64_t{token} * task.x_row_stride + uint64_t{head} * task.x_head_stride;
}
__device__ __forceinline__ float* output_of(const HeadLinearTask& task, uint32_t token, uint32_t head) {
  return task.y + uint64_t{token} * task.y_row_stride + uint64_t{head} * task.y_head_stride;
}

// Plain
// ---------------------------------------------------------------------------------------------------------------

template <class Stored, unsigned kTokens, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(HeadLinearTask task, uint32_t blocks_a_head, uint32_t tile_groups) {
  gpu::let_next_begin();
  gpu::wait_for_previous();
  const Part part = part_of_block<kTokens>(task, blocks_a_head);
  if (part.tokens == 0) return;
  const unsigned lane = gpu::lane_index();
  const uint32_t first_row = (part.block * kHeadWarps + gpu::warp_index()) * kHeadRowsOfWarp;
  uint32_t rows[kHeadRowsOfWarp];
#pragma unroll
  for (unsigned i = 0; i < kHeadRowsOfWarp; ++i) {
    const uint32_t row = first_row + i < task.rows_used ? first_row + i : task.rows_used - 1;  // computed, not stored
    rows[i] = part.head * task.head_rows + task.first_row + row;
  }
  const uint32_t chunks = (task.weight.in - 1) / Stored::kPer16 + 1;
  const uint32_t tile_chunks = tile_groups * gpu::kWarpThreads;
  const uint32_t stride = tile_groups * Stored::kQuarters * gpu::kWarpThreads;
  auto* inputs = gpu::shared_memory<float4>();
  float totals[kHeadRowsOfWarp][kTokens] = {};
  for (uint32_t first = 0; first < chunks; first += tile_chunks) {
    gpu::block_barrier();  // every warp is done with the tile before
    for (unsigned token = 0; token < part.tokens; ++token)
      device::stage_input<Stored>(input_of(task, part.first_token + token, part.head), task.weight.in,
                                  first * Stored::kPer16, tile_groups, inputs + token * stride);
    gpu::block_barrier();  // the tile is there
    const uint32_t end = first + tile_chunks < chunks ? first + tile_chunks : chunks;
    device::add_chunks<Stored, kAligned>(task.weight, rows, first, end, lane, gpu::kWarpThreads, inputs, stride,
                                         totals);
  }
#pragma unroll
  for (unsigned i = 0; i < kHeadRowsOfWarp; ++i) {
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
      const float total = device::sum_of_warp(totals[i][token]);
      const bool is_there = token < part.tokens && first_row + i < task.rows_used;
      if (is_there && lane == 0) output_of(task, part.first_token + token, part.head)[first_row + i] = total;
    }
  }
}

// Transposed
// ----------------------------------------------------------------------------------------------------------

struct RowTile {
  float* inputs;         // [kHeadRowTile, tokens]
  uint32_t* scale_rows;  // [kHeadRowTile]
  uint32_t first_row;    // of the matrix
  uint32_t rows;
};

/// Inputs of rows [first, first + tile.rows) of the head; zeros for tokens that are not there.
template <unsigned kTokens>
__device__ __forceinline__ void stage_rows(const HeadLinearTask& task, const Part& part, uint32_t first,
                                           const RowTile& tile) {
  for (uint32_t row = gpu::thread_index(); row < tile.rows; row += kThreads) {
    if (task.weight.planes[kScales] != nullptr) tile.scale_rows[row] = (tile.first_row + row) / task.weight.block_out;
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
      const bool is_there = token < part.tokens;
      tile.inputs[row * kTokens + token] =
          is_there ? input_of(task, part.first_token + token, part.head)[first + row] : 0.0F;
    }
  }
}

/// The lane's chunk of one row, as decoded groups of four.
template <class Stored, bool kAligned>
struct RowChunk {
  uint4 bytes;
  float odd[kAligned ? 1 : Stored::kPer16];

  __device__ __forceinline__ void load(const Matrix& matrix, uint32_t row, uint32_t column) {
    if constexpr (kAligned) {
      const uint8_t* from = device::aligned_row<Stored>(matrix, row) + column / Stored::kPer16 * 16;
      bytes = column < matrix.in ? gpu::load_streaming(from) : make_uint4(0, 0, 0, 0);
    } else {
      const uint64_t at = device::code_index<Stored>(matrix.in, row, column);
#pragma unroll
      for (unsigned i = 0; i < Stored::kPer16; ++i)
        odd[i] = column + i < matrix.in ? Stored::decode_one(matrix.planes[kCodes], at + i) : 0.0F;
    }
  }
  __device__ __forceinline__ void decode(unsigned quarter, float (&values)[4]) const {
    if constexpr (kAligned) {
      Stored::decode(bytes, quarter, values);
    } else {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        values[i] = odd[quarter * 4 + i];
    }
  }
};

/// The scale of column `column` in the row of scales `scale_row`.
template <class Stored>
__device__ __forceinline__ float scale_at(const Matrix& matrix, uint32_t scale_row, uint32_t column) {
  if (matrix.planes[kScales] == nullptr || column >= matrix.in) return 1.0F;
  const uint32_t across = (matrix.in - 1) / matrix.block_in + 1;
  const uint64_t index = uint64_t{scale_row} * across + column / matrix.block_in;
  if constexpr (device::kIsPacked<Stored>) return device::decode_scale(matrix, index);
  return static_cast<const float*>(matrix.planes[kScales])[index];
}

/// The zero point there, of codes that have such.
template <class Stored>
__device__ __forceinline__ float zero_at(const Matrix& matrix, uint32_t scale_row, uint32_t column) {
  if constexpr (!device::kHasZeros<Stored>) return 0.0F;
  if (column >= matrix.in) return 0.0F;
  const uint32_t across = (matrix.in - 1) / matrix.block_in + 1;
  return device::decode_zero(matrix, uint64_t{scale_row} * across + column / matrix.block_in);
}

/// sums[token][i] += input[token] * scale * weight[i] for one row. Runs of aligned chunks have one scale.
template <class Stored, bool kAligned, unsigned kTokens>
__device__ __forceinline__ void add_row(const Matrix& matrix, const RowChunk<Stored, kAligned>& chunk,
                                        uint32_t scale_row, uint32_t column, const float* inputs,
                                        float (&sums)[kTokens][Stored::kPer16]) {
  float scaled[kTokens] = {};
  float run_zero = 0;
#pragma unroll
  for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
    if (quarter % (Stored::kPerScale / 4) == 0) {
      const float run_scale = kAligned ? scale_at<Stored>(matrix, scale_row, column + quarter * 4) : 1.0F;
      run_zero = kAligned ? zero_at<Stored>(matrix, scale_row, column + quarter * 4) : 0.0F;
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token)
        scaled[token] = inputs[token] * run_scale;
    }
    float weights[4];
    chunk.decode(quarter, weights);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const float scale = kAligned ? 1.0F : scale_at<Stored>(matrix, scale_row, column + quarter * 4 + i);
      if constexpr (device::kHasZeros<Stored>)
        weights[i] -= kAligned ? run_zero : zero_at<Stored>(matrix, scale_row, column + quarter * 4 + i);
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token) {
        float& sum = sums[token][quarter * 4 + i];
        sum = gpu::fused_multiply_add(kAligned ? scaled[token] : scaled[token] * scale, weights[i], sum);
      }
    }
  }
}

/// This warp's rows of the tile.
template <class Stored, bool kAligned, unsigned kTokens>
__device__ __forceinline__ void add_rows(const Matrix& matrix, const RowTile& tile, uint32_t column,
                                         float (&sums)[kTokens][Stored::kPer16]) {
  // Loads of several rows are under way before the first is used: what hides the memory's latency.
  constexpr unsigned kAhead = kAligned ? 4 : 1;
  for (uint32_t row = gpu::warp_index(); row < tile.rows; row += kAhead * kHeadWarps) {
    RowChunk<Stored, kAligned> chunks[kAhead];
#pragma unroll
    for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
      const uint32_t at = row + ahead * kHeadWarps;
      if (at < tile.rows) chunks[ahead].load(matrix, tile.first_row + at, column);
    }
#pragma unroll
    for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
      const uint32_t at = row + ahead * kHeadWarps;
      if (at >= tile.rows) break;
      add_row<Stored, kAligned, kTokens>(matrix, chunks[ahead], tile.scale_rows[at], column, tile.inputs + at * kTokens,
                                         sums);
    }
  }
}

/// Adds the sums of the warps and stores them, token by token. Within a warp's sums, groups of four of different lanes
/// lie side by side.
template <class Stored, unsigned kTokens>
__device__ __forceinline__ void store_sums(const HeadLinearTask& task, const Part& part, uint32_t first_column,
                                           const float (&sums)[kTokens][Stored::kPer16], float4* shared) {
  constexpr unsigned kWarpQuads = Stored::kQuarters * gpu::kWarpThreads;
#pragma unroll
  for (unsigned token = 0; token < kTokens; ++token) {
    const float(&mine)[Stored::kPer16] = sums[token];
#pragma unroll
    for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter)
      shared[gpu::warp_index() * kWarpQuads + quarter * gpu::kWarpThreads + gpu::lane_index()] =
          make_float4(mine[quarter * 4], mine[quarter * 4 + 1], mine[quarter * 4 + 2], mine[quarter * 4 + 3]);
    gpu::block_barrier();  // the sums of all warps are there
    for (uint32_t i = gpu::thread_index(); i < device::kGroupValues<Stored>; i += kThreads) {
      const uint32_t quad = i % Stored::kPer16 / 4 * gpu::kWarpThreads + i / Stored::kPer16;
      float total = 0;
#pragma unroll
      for (unsigned warp = 0; warp < kHeadWarps; ++warp)
        total += reinterpret_cast<const float*>(shared + warp * kWarpQuads + quad)[i % 4];
      const bool is_there = token < part.tokens && first_column + i < task.weight.in;
      if (is_there) output_of(task, part.first_token + token, part.head)[first_column + i] = total;
    }
    gpu::block_barrier();  // and have been added
  }
}

template <class Stored, unsigned kTokens, bool kAligned>
__device__ __forceinline__ void multiply_transposed(const HeadLinearTask& task, uint32_t blocks_a_head) {
  gpu::let_next_begin();
  gpu::wait_for_previous();
  const Part part = part_of_block<kTokens>(task, blocks_a_head);
  if (part.tokens == 0) return;
  const uint32_t first_column = part.block * device::kGroupValues<Stored>;
  const uint32_t column = first_column + gpu::lane_index() * Stored::kPer16;
  auto* shared_sums = gpu::shared_memory<float4>();
  RowTile tile;
  tile.inputs = reinterpret_cast<float*>(shared_sums + kHeadWarps * Stored::kQuarters * gpu::kWarpThreads);
  tile.scale_rows = reinterpret_cast<uint32_t*>(tile.inputs + kHeadRowTile * kTokens);
  float sums[kTokens][Stored::kPer16] = {};
  for (uint32_t first = 0; first < task.rows_used; first += kHeadRowTile) {
    tile.first_row = part.head * task.head_rows + task.first_row + first;
    tile.rows = task.rows_used - first < kHeadRowTile ? task.rows_used - first : kHeadRowTile;
    gpu::block_barrier();  // every warp is done with the tile before
    stage_rows<kTokens>(task, part, first, tile);
    gpu::block_barrier();  // the tile is there
    add_rows<Stored, kAligned, kTokens>(task.weight, tile, column, sums);
  }
  store_sums<Stored, kTokens>(task, part, first_column, sums, shared_sums);
}

template <class Stored, unsigned kTokens, bool kAligned>
__global__ void __launch_bounds__(kThreads) transposed_kernel(HeadLinearTask task, uint32_t blocks_a_head) {
  multiply_transposed<Stored, kTokens, kAligned>(task, blocks_a_head);
}

/// Blocks behind those of the heads rotate, a pair a thread.
template <class Stored, unsigned kTokens>
__global__ void __launch_bounds__(kThreads)
    absorb_kernel(HeadLinearTask task, uint32_t blocks_a_head, RotateTask rotated) {
  const uint32_t blocks = task.heads * blocks_a_head;
  if (gpu::block_index().x < blocks) return multiply_transposed<Stored, kTokens, true>(task, blocks_a_head);
  gpu::let_next_begin();
  gpu::wait_for_previous();
  const uint64_t pairs = uint64_t{rotated.heads} * (rotated.dim / 2);
  const uint64_t index = uint64_t{gpu::block_index().x - blocks} * kThreads + gpu::thread_index();
  if (index < rotated.rows * pairs)
    device::rotate_pair(rotated, device::first_position(rotated), index / pairs, index % pairs);
}

// Which of them
// -------------------------------------------------------------------------------------------------------

enum class Direction { plain, transposed };

template <Direction kDirection, class Stored, unsigned kTokens, bool kAligned>
void launch_one(gpu::Stream& stream, const HeadLinearTask& task, const HeadLinearChoice& choice) {
  if constexpr (kDirection == Direction::plain) {
    gpu::launch_overlapping(stream, choice.shape, plain_kernel<Stored, kTokens, kAligned>, task, choice.blocks_a_head,
                            choice.tile_groups);
  } else {
    gpu::launch_overlapping(stream, choice.shape, transposed_kernel<Stored, kTokens, kAligned>, task,
                            choice.blocks_a_head);
  }
}

template <Direction kDirection, class Stored, bool kAligned>
void launch_tokens(gpu::Stream& stream, const HeadLinearTask& task, const HeadLinearChoice& choice) {
  switch (choice.tokens) {
    case 1: return launch_one<kDirection, Stored, 1, kAligned>(stream, task, choice);
    case 2: return launch_one<kDirection, Stored, 2, kAligned>(stream, task, choice);
    case 4: return launch_one<kDirection, Stored, 4, kAligned>(stream, task, choice);
    default: return launch_one<kDirection, Stored, 8, kAligned>(stream, task, choice);
  }
}

template <Direction kDirection, class Stored>
void run_stored(gpu::Stream& stream, const HeadLinearTask& task, const HeadLinearChoice& choice) {
  if (has_aligned_rows(form_of(task.weight))) return launch_tokens<kDirection, Stored, true>(stream, task, choice);
  launch_tokens<kDirection, Stored, false>(stream, task, choice);
}

template <Direction kDirection>
void run(gpu::Stream& stream, const HeadLinearTask& task, const HeadLinearChoice& choice) {
  device::with_stored(task.weight.coding,
                      [&]<class Stored>(Stored) { run_stored<kDirection, Stored>(stream, task, choice); });
}

constexpr unsigned kMostTokens = 8;
constexpr uint64_t kSharedBytes = 32 << 10;
constexpr uint64_t kMostBlocks = 65'535;  // in y; more follow in z

/// Blocks for every head and every group of tokens.
HeadLinearChoice spread(const HeadLinearTask& task, uint64_t blocks_a_head) {
  HeadLinearChoice choice;
  while (choice.tokens < std::min(task.rows, kMostTokens))
    choice.tokens *= 2;
  choice.blocks_a_head = static_cast<uint32_t>(blocks_a_head);
  const uint64_t token_groups = ceil_div(task.rows, choice.tokens);
  choice.shape.grid_x = static_cast<unsigned>(blocks_a_head * task.heads);
  choice.shape.grid_y = static_cast<unsigned>(std::min(token_groups, kMostBlocks));
  choice.shape.grid_z = static_cast<unsigned>(ceil_div(token_groups, kMostBlocks));
  choice.shape.threads = kHeadWarps * gpu::kWarpThreads;
  return choice;
}

}  // namespace

HeadLinearChoice choose_head_linear(const HeadLinearTask& task) {
  HeadLinearChoice choice = spread(task, ceil_div(task.rows_used, uint64_t{kHeadWarps} * kHeadRowsOfWarp));
  const uint32_t group_values = gpu::kWarpThreads * codes_in_16_bytes(task.weight.coding);
  const uint64_t group_bytes = uint64_t{group_values} * sizeof(float) * choice.tokens;
  const uint64_t that_fit = std::max<uint64_t>(1, kSharedBytes / group_bytes);
  choice.tile_groups = static_cast<uint32_t>(std::min(that_fit, ceil_div(task.weight.in, group_values)));
  choice.shape.shared_bytes = static_cast<unsigned>(choice.tile_groups * group_bytes);
  return choice;
}

HeadLinearChoice choose_head_linear_transposed(const HeadLinearTask& task) {
  const uint32_t block_columns = gpu::kWarpThreads * codes_in_16_bytes(task.weight.coding);
  HeadLinearChoice choice = spread(task, ceil_div(task.weight.in, block_columns));
  // Inputs and the number of its row of scales for each matrix row; the sums of every warp for one token.
  const uint64_t inputs = uint64_t{kHeadRowTile} * (choice.tokens + 1);
  const uint64_t sums = uint64_t{kHeadWarps} * block_columns;
  choice.shape.shared_bytes = static_cast<unsigned>((inputs + sums) * sizeof(float));
  return choice;
}

void head_linear_exact(gpu::Stream& stream, const HeadLinearTask& task) {
  if (task.rows == 0 || task.heads == 0 || task.rows_used == 0) return;
  run<Direction::plain>(stream, task, choose_head_linear(task));
}

void head_linear_transposed_exact(gpu::Stream& stream, const HeadLinearTask& task) {
  if (task.rows == 0 || task.heads == 0) return;
  run<Direction::transposed>(stream, task, choose_head_linear_transposed(task));
}

bool takes_rotation(const HeadLinearTask& absorbed) {
  return is_common(absorbed.weight.coding) && has_aligned_rows(form_of(absorbed.weight)) &&
         absorbed.rows <= kMostTokens;
}

void absorb_exact(gpu::Stream& stream, const RotateTask& rotated, const HeadLinearTask& absorbed) {
  HeadLinearChoice choice = choose_head_linear_transposed(absorbed);
  const uint64_t pairs = uint64_t{rotated.rows} * rotated.heads * (rotated.dim / 2);
  choice.shape.grid_x += static_cast<unsigned>(ceil_div(pairs, kThreads));
  device::with_common(absorbed.weight.coding, [&]<class Stored>(Stored) {
    const auto run = [&](auto kernel) {
      gpu::launch_overlapping(stream, choice.shape, kernel, absorbed, choice.blocks_a_head, rotated);
    };
    switch (choice.tokens) {
      case 1: return run(absorb_kernel<Stored, 1>);
      case 2: return run(absorb_kernel<Stored, 2>);
      case 4: return run(absorb_kernel<Stored, 4>);
      default: return run(absorb_kernel<Stored, 8>);
    }
  });
}

}  // namespace dspack::kernels::cuda
