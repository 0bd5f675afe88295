// A block takes 8 to 32 chunks of columns of one head, one a lane, and its threads are eight shares that take the
// head's rows by turns:
//
//   share s   rows s, s + 8, s + 16, ..     sums[token][column of the chunk] += (input * scale) * weight, by fma
//
// Then the sums of the eight shares are added in their order.
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/head_part.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kHeadRowTile = 256;  // inputs, each of a matrix row, in shared memory at once
constexpr unsigned kShares = 8;         // of a head's rows
constexpr unsigned kRowsOfStep = 2;     // rows that a thread asks for together
constexpr unsigned kShareDepth = 4;     // such steps under way: 8 rows, 16 KiB of a block of 16 chunks

/// Which columns a thread has: chunk `lane` of the block's `lanes`, in the rows of share `share` of kShares.
struct Place {
  uint32_t lanes;
  uint32_t lane;
  uint32_t share;
  uint32_t column;  // first of the chunk

  template <class Stored>
  static __device__ __forceinline__ Place of_thread(uint32_t block, uint32_t lanes) {
    const uint32_t lane = gpu::thread_index() & (lanes - 1);  // a power of two
    const uint32_t share = gpu::thread_index() >> gpu::count_bits(lanes - 1);
    return {lanes, lane, share, (block * lanes + lane) * Stored::kPer16};
  }
};

struct RowTile {
  float* inputs;         // [kHeadRowTile, tokens]
  uint32_t* scale_rows;  // [kHeadRowTile]; 0 where there are no scales
  uint32_t first_row;    // of the matrix
  uint32_t rows;
};

/// Inputs of rows [first, first + tile.rows) of the head; zeros for tokens that are not there.
template <unsigned kTokens>
__device__ __forceinline__ void stage_rows(const HeadLinearTask& task, const device::HeadPart& part,
                                           const device::ScaleRows& scale_rows, uint32_t first, const RowTile& tile) {
  for (uint32_t row = gpu::thread_index(); row < tile.rows; row += gpu::block_threads()) {
    tile.scale_rows[row] = scale_rows.block_of(tile.first_row + row);
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
      const bool is_there = token < part.tokens;
      tile.inputs[row * kTokens + token] =
          is_there ? device::input_of(task, part.first_token + token, part.head)[first + row] : 0.0F;
    }
  }
}

/// A chunk of a row, as decoded groups of four.
template <class Stored, bool kAligned>
struct RowChunk {
  uint4 bytes;

  __device__ __forceinline__ void decode(unsigned quarter, float (&values)[4]) const {
    Stored::decode(bytes, quarter, values);
  }
};
template <class Stored>
struct RowChunk<Stored, false> {
  float odd[Stored::kPer16];

  __device__ __forceinline__ void load(const Matrix& matrix, uint32_t row, uint32_t column) {
    const uint64_t at = device::code_index<Stored>(matrix.in, row, column);
#pragma unroll
    for (unsigned i = 0; i < Stored::kPer16; ++i)
      odd[i] = column + i < matrix.in ? Stored::decode_one(matrix.planes[kCodes], at + i) : 0.0F;
  }
  __device__ __forceinline__ void decode(unsigned quarter, float (&values)[4]) const {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      values[i] = odd[quarter * 4 + i];
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

/// The scales and zero points of a chunk in the row of scales that was asked for last: rows of a head mostly share one.
template <class Stored>
struct ChunkScales {
  uint32_t blocks[device::kRuns<Stored>];  // of the chunk's runs, in a row of scales
  uint32_t scale_row = 0xffffffffU;        // none yet
  float scale[device::kRuns<Stored>] = {};
  float zero[device::kRuns<Stored>] = {};

  __device__ __forceinline__ ChunkScales(const Matrix& matrix, uint32_t column) {
    const device::BlockOfRun<Stored> block_of(matrix);
#pragma unroll
    for (unsigned run = 0; run < device::kRuns<Stored>; ++run)
      blocks[run] = column < matrix.in ? block_of(column / Stored::kPerScale + run) : 0;
  }

  __device__ __forceinline__ void take(const Matrix& matrix, uint32_t across, uint32_t row) {
    if (row == scale_row) return;
    scale_row = row;
#pragma unroll
    for (unsigned run = 0; run < device::kRuns<Stored>; ++run) {
      const uint64_t index = uint64_t{row} * across + blocks[run];
      scale[run] = matrix.planes[kScales] == nullptr ? 1.0F
                   : device::kIsPacked<Stored>       ? device::decode_scale(matrix, index)
                                                     : static_cast<const float*>(matrix.planes[kScales])[index];
      if constexpr (device::kHasZeros<Stored>) zero[run] = device::decode_zero(matrix, index);
    }
  }
};

/// sums[token][i] += (input[token] * scale) * weight[i] for one row.
template <class Stored, unsigned kTokens>
__device__ __forceinline__ void add_row(const RowChunk<Stored, true>& chunk, const ChunkScales<Stored>& scales,
                                        const float* inputs, float (&sums)[kTokens][Stored::kPer16]) {
  float scaled[kTokens] = {};
#pragma unroll
  for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
    const unsigned run = quarter / (Stored::kPerScale / 4);
    if (quarter % (Stored::kPerScale / 4) == 0) {
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token)
        scaled[token] = inputs[token] * scales.scale[run];
    }
    float weights[4];
    chunk.decode(quarter, weights);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if constexpr (device::kHasZeros<Stored>) weights[i] -= scales.zero[run];
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token) {
        float& sum = sums[token][quarter * 4 + i];
        sum = gpu::fused_multiply_add(scaled[token], weights[i], sum);
      }
    }
  }
}

/// The same where every value may have a scale of its own.
template <class Stored, unsigned kTokens>
__device__ __forceinline__ void add_odd_row(const Matrix& matrix, const RowChunk<Stored, false>& chunk,
                                            uint32_t scale_row, uint32_t column, const float* inputs,
                                            float (&sums)[kTokens][Stored::kPer16]) {
#pragma unroll
  for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
    float weights[4];
    chunk.decode(quarter, weights);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const uint32_t at = column + quarter * 4 + i;
      const float scale = scale_at<Stored>(matrix, scale_row, at);
      if constexpr (device::kHasZeros<Stored>) weights[i] -= zero_at<Stored>(matrix, scale_row, at);
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token) {
        float& sum = sums[token][quarter * 4 + i];
        sum = gpu::fused_multiply_add(inputs[token] * scale, weights[i], sum);
      }
    }
  }
}

/// A share's rows, two at a time, as what a WeightStream asks for: the same chunk of row after row.
struct ShareRows {
  const uint8_t* from;  // the chunk in the next row
  uint64_t step_bytes;  // from a row to the next of the share
  uint32_t left;

  __device__ __forceinline__ bool next(const uint8_t* (&data)[1][kRowsOfStep]) {
    if (left == 0) return false;
#pragma unroll
    for (unsigned row = 0; row < kRowsOfStep; ++row)
      data[0][row] = from + (row < left ? row : 0) * step_bytes;  // behind the last one: asked for, and not used
    from += kRowsOfStep * step_bytes;
    left -= left < kRowsOfStep ? left : kRowsOfStep;
    return true;
  }
};
using ShareStream = device::WeightStream<1, kRowsOfStep, kShareDepth, ShareRows>;

template <class Stored, bool kAligned>
__device__ __forceinline__ auto stream_of_share(void* shared, const HeadLinearTask& task, const device::HeadPart& part,
                                                const Place& place) {
  if constexpr (kAligned) {
    const uint32_t row = part.head * task.head_rows + task.first_row + place.share;
    const uint8_t* from = device::aligned_row<Stored>(task.weight, row) + uint64_t{place.column / Stored::kPer16} * 16;
    const uint64_t row_bytes = uint64_t{task.weight.in} / Stored::kPer16 * 16;
    const uint32_t rows = task.rows_used > place.share ? (task.rows_used - place.share - 1) / kShares + 1 : 0;
    // A row has one chunk for this lane, its first; behind the end of a row there is none.
    return ShareStream(shared, {from, kShares * row_bytes, rows}, 1, place.column < task.weight.in ? 0 : 1, 1);
  } else {
    return device::NoStream();
  }
}

/// This share's rows of the tile.
template <class Stored, unsigned kTokens>
__device__ __forceinline__ void add_rows(const Matrix& matrix, const device::ScaleRows& scale_rows, const RowTile& tile,
                                         const Place& place, ShareStream& stream, ChunkScales<Stored>& scales,
                                         float (&sums)[kTokens][Stored::kPer16]) {
  for (uint32_t first = place.share; first < tile.rows; first += kShares * kRowsOfStep) {
    uint4 pieces[kRowsOfStep];
    stream.take(0, pieces);
#pragma unroll
    for (unsigned i = 0; i < kRowsOfStep; ++i) {
      const uint32_t row = first + i * kShares;
      if (row >= tile.rows) break;
      scales.take(matrix, scale_rows.blocks_a_row, tile.scale_rows[row]);
      add_row(RowChunk<Stored, true>{pieces[i]}, scales, tile.inputs + row * kTokens, sums);
    }
  }
}
template <class Stored, unsigned kTokens>
__device__ __forceinline__ void add_rows(const Matrix& matrix, const device::ScaleRows& /*scale_rows*/,
                                         const RowTile& tile, const Place& place, device::NoStream& /*stream*/,
                                         ChunkScales<Stored>& /*scales*/, float (&sums)[kTokens][Stored::kPer16]) {
  for (uint32_t row = place.share; row < tile.rows; row += kShares) {
    RowChunk<Stored, false> chunk;
    chunk.load(matrix, tile.first_row + row, place.column);
    add_odd_row(matrix, chunk, tile.scale_rows[row], place.column, tile.inputs + row * kTokens, sums);
  }
}

/// Adds the sums of the shares and stores them, token by token. Within a share's sums, groups of four of different
/// lanes lie side by side.
template <class Stored, unsigned kTokens>
__device__ __forceinline__ void store_sums(const HeadLinearTask& task, const device::HeadPart& part, const Place& place,
                                           const float (&sums)[kTokens][Stored::kPer16], float4* shared) {
  const uint32_t quads = Stored::kQuarters * place.lanes;  // of a share
  const uint32_t first_column = part.block * place.lanes * Stored::kPer16;
#pragma unroll
  for (unsigned token = 0; token < kTokens; ++token) {
    const float(&mine)[Stored::kPer16] = sums[token];
#pragma unroll
    for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter)
      shared[place.share * quads + quarter * place.lanes + place.lane] =
          make_float4(mine[quarter * 4], mine[quarter * 4 + 1], mine[quarter * 4 + 2], mine[quarter * 4 + 3]);
    gpu::block_barrier();  // the sums of all shares are there
    for (uint32_t i = gpu::thread_index(); i < place.lanes * Stored::kPer16; i += gpu::block_threads()) {
      const uint32_t quad = i % Stored::kPer16 / 4 * place.lanes + i / Stored::kPer16;
      float total = 0;
#pragma unroll
      for (unsigned share = 0; share < kShares; ++share)
        total += reinterpret_cast<const float*>(shared + share * quads + quad)[i % 4];
      const bool is_there = token < part.tokens && first_column + i < task.weight.in;
      if (is_there) device::output_of(task, part.first_token + token, part.head)[first_column + i] = total;
    }
    gpu::block_barrier();  // and have been added
  }
}

template <class Stored, unsigned kTokens, bool kAligned>
__device__ __forceinline__ void multiply_transposed(const HeadLinearTask& task, const device::HeadBlocks& blocks,
                                                    uint32_t lanes) {
  gpu::let_next_begin();
  const device::HeadPart part = device::part_of_block<kTokens>(task, blocks);
  if (part.tokens == 0) return gpu::wait_for_previous();
  const Place place = Place::of_thread<Stored>(part.block, lanes);
  auto* shared_sums = gpu::shared_memory<float4>();
  auto* stream_place = shared_sums + kShares * Stored::kQuarters * lanes;
  RowTile tile;
  tile.inputs = reinterpret_cast<float*>(stream_place + gpu::block_threads() * ShareStream::kUnderWay);
  tile.scale_rows = reinterpret_cast<uint32_t*>(tile.inputs + kHeadRowTile * kTokens);
  auto stream = stream_of_share<Stored, kAligned>(stream_place, task, part, place);
  const device::ScaleRows scale_rows(task.weight);
  ChunkScales<Stored> scales(task.weight, place.column);
  if (place.share < task.rows_used) {  // the first come from memory, as the weights do
    const uint32_t row = part.head * task.head_rows + task.first_row + place.share;
    scales.take(task.weight, scale_rows.blocks_a_row, scale_rows.block_of(row));
  }
  gpu::wait_for_previous();
  float sums[kTokens][Stored::kPer16] = {};
  for (uint32_t first = 0; first < task.rows_used; first += kHeadRowTile) {
    tile.first_row = part.head * task.head_rows + task.first_row + first;
    tile.rows = task.rows_used - first < kHeadRowTile ? task.rows_used - first : kHeadRowTile;
    gpu::block_barrier();  // every thread is done with the tile before
    stage_rows<kTokens>(task, part, scale_rows, first, tile);
    gpu::block_barrier();  // the tile is there
    add_rows(task.weight, scale_rows, tile, place, stream, scales, sums);
  }
  store_sums<Stored, kTokens>(task, part, place, sums, shared_sums);
}

template <class Stored, unsigned kTokens, bool kAligned>
__global__ void __launch_bounds__(device::kHeadThreads)
    transposed_kernel(HeadLinearTask task, device::HeadBlocks blocks, uint32_t lanes) {
  multiply_transposed<Stored, kTokens, kAligned>(task, blocks, lanes);
}

/// Blocks behind those of the heads rotate, a pair a thread.
template <class Stored, unsigned kTokens>
__global__ void __launch_bounds__(device::kHeadThreads)
    absorb_kernel(HeadLinearTask task, device::HeadBlocks blocks, uint32_t lanes, RotateTask rotated) {
  const uint32_t of_heads = task.heads * blocks.count;
  if (gpu::block_index().x < of_heads) return multiply_transposed<Stored, kTokens, true>(task, blocks, lanes);
  gpu::let_next_begin();
  gpu::wait_for_previous();
  const uint64_t pairs = uint64_t{rotated.heads} * (rotated.dim / 2);
  const uint64_t index = uint64_t{gpu::block_index().x - of_heads} * gpu::block_threads() + gpu::thread_index();
  if (index < rotated.rows * pairs)
    device::rotate_pair(rotated, device::first_position(rotated), index / pairs, index % pairs);
}

template <class Stored, bool kAligned>
void launch(gpu::Stream& stream, const HeadLinearTask& task, const HeadLinearChoice& choice) {
  const auto run = [&](auto kernel) {
    gpu::launch_overlapping(stream, choice.shape, kernel, task, device::HeadBlocks(choice.blocks_a_head), choice.lanes);
  };
  switch (choice.tokens) {
    case 1: return run(transposed_kernel<Stored, 1, kAligned>);
    case 2: return run(transposed_kernel<Stored, 2, kAligned>);
    case 4: return run(transposed_kernel<Stored, 4, kAligned>);
    default: return run(transposed_kernel<Stored, 8, kAligned>);
  }
}

constexpr uint64_t kEnoughBlocks = 256;
constexpr uint32_t kLeastLanes = 8;

}  // namespace

HeadLinearChoice choose_head_linear_transposed(const HeadLinearTask& task) {
  const uint64_t chunks = ceil_div(task.weight.in, codes_in_16_bytes(task.weight.coding));
  // Lanes of a warp that take one row: as few as it takes to keep every current card busy, and 128 bytes at least.
  uint32_t lanes = gpu::kWarpThreads;
  HeadLinearChoice choice = device::spread_heads(task, ceil_div(chunks, lanes));
  while (lanes > kLeastLanes && uint64_t{choice.shape.grid_x} * choice.shape.grid_y < kEnoughBlocks) {
    lanes /= 2;
    choice = device::spread_heads(task, ceil_div(chunks, lanes));
  }
  choice.lanes = lanes;
  choice.shape.threads = kShares * lanes;
  // The sums of every share for one token; weights; inputs and the number of its row of scales for each matrix row.
  const uint64_t sums = uint64_t{kShares} * lanes * codes_in_16_bytes(task.weight.coding);
  const uint64_t inputs = uint64_t{kHeadRowTile} * (choice.tokens + 1);
  choice.shape.shared_bytes = static_cast<unsigned>((sums + inputs) * sizeof(float)) +
                              device::stream_bytes(choice.shape.threads, kRowsOfStep * kShareDepth);
  return choice;
}

void head_linear_transposed_exact(gpu::Stream& stream, const HeadLinearTask& task) {
  if (task.rows == 0 || task.heads == 0) return;
  const HeadLinearChoice choice = choose_head_linear_transposed(task);
  device::with_stored(task.weight.coding, [&]<class Stored>(Stored) {
    if (has_aligned_rows(form_of(task.weight))) return launch<Stored, true>(stream, task, choice);
    launch<Stored, false>(stream, task, choice);
  });
}

bool takes_rotation(const HeadLinearTask& absorbed) {
  return is_common(absorbed.weight.coding) && has_aligned_rows(form_of(absorbed.weight)) &&
         absorbed.rows <= device::kMostHeadTokens;
}

void absorb_exact(gpu::Stream& stream, const RotateTask& rotated, const HeadLinearTask& absorbed) {
  HeadLinearChoice choice = choose_head_linear_transposed(absorbed);
  const uint64_t pairs = uint64_t{rotated.rows} * rotated.heads * (rotated.dim / 2);
  choice.shape.grid_x += static_cast<unsigned>(ceil_div(pairs, choice.shape.threads));
  device::with_common(absorbed.weight.coding, [&]<class Stored>(Stored) {
    const auto run = [&](auto kernel) {
      gpu::launch_overlapping(stream, choice.shape, kernel, absorbed, device::HeadBlocks(choice.blocks_a_head),
                              choice.lanes, rotated);
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
