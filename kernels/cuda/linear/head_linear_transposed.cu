// A block takes 16 or 32 groups of four columns of one head, one group per lane. Its threads form eight shares that
// take the head's rows in turn:
//
//   share s   rows s, s + 8, s + 16, ..     sums[token][column of the four] += (input * scale) * weight, by fma
//
// Then the sums of the eight shares are added in order. A lane has few columns so that there are many warps: the time
// of the launch is that of one warp's sequential steps.
#include <type_traits>

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/linear/head_part.cuh"
#include "kernels/cuda/tokens/elementwise.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kHeadRowTile = 256;  // inputs in shared memory at once, one per matrix row
constexpr unsigned kShares = 8;         // shares of a head's rows
constexpr unsigned kColumns = 4;        // columns per lane

/// Four columns of a row in stored form.
template <class Stored>
struct Four {
  static constexpr unsigned kBytes = 16 * kColumns / Stored::kPer16;
  using Word =
      std::conditional_t<kBytes == 2, uint16_t,
                         std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 8, uint2, uint4>>>;

  static __device__ __forceinline__ void decode(const Word& word, float (&values)[kColumns]) {
    uint4 bytes = make_uint4(0, 0, 0, 0);
    if constexpr (kBytes <= 4) {
      bytes.x = word;
    } else if constexpr (kBytes == 8) {
      bytes.x = word.x;
      bytes.y = word.y;
    } else {
      bytes = word;
    }
    Stored::decode(bytes, 0, values);
  }
};

/// Rows per lane whose weights are in flight: 64 bytes per lane, 64 KiB on a multiprocessor with 32 warps.
template <class Stored>
constexpr unsigned kRowsAhead = Four<Stored>::kBytes < 4 ? 16 : 64 / Four<Stored>::kBytes;

/// A thread's columns: group of four number `lane` of the block's `lanes`, in the rows of share `share` of kShares.
struct ThreadColumns {
  uint32_t lanes;
  uint32_t lane;
  uint32_t share;
  uint32_t column;  // first of the four

  static __device__ __forceinline__ ThreadColumns of_thread(uint32_t block, uint32_t lanes) {
    const uint32_t lane = gpu::thread_index() & (lanes - 1);  // a power of two
    const uint32_t share = gpu::thread_index() >> gpu::popc(lanes - 1);
    return {lanes, lane, share, (block * lanes + lane) * kColumns};
  }
};

struct RowTile {
  float* inputs;         // [kHeadRowTile, tokens]
  uint32_t* scale_rows;  // [kHeadRowTile]; 0 if there are no scales
  uint32_t first_row;    // first row in the matrix
  uint32_t rows;
};

/// Stages the inputs of rows [first, first + tile.rows) of the head, with zeros for missing tokens.
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

/// The scale of column `column` in the row of scales `scale_row`.
template <class Stored>
__device__ __forceinline__ float scale_at(const Matrix& matrix, uint32_t scale_row, uint32_t column) {
  if (matrix.planes[kScales] == nullptr || column >= matrix.in) return 1.0F;
  const uint32_t across = (matrix.in - 1) / matrix.block_in + 1;
  const uint64_t index = uint64_t{scale_row} * across + column / matrix.block_in;
  if constexpr (device::kIsPacked<Stored>) return device::decode_scale(matrix, index);
  return static_cast<const float*>(matrix.planes[kScales])[index];
}

/// The zero point at that place, for codes that have zero points.
template <class Stored>
__device__ __forceinline__ float zero_at(const Matrix& matrix, uint32_t scale_row, uint32_t column) {
  if constexpr (!device::kHasZeros<Stored>) return 0.0F;
  if (column >= matrix.in) return 0.0F;
  const uint32_t across = (matrix.in - 1) / matrix.block_in + 1;
  return device::decode_zero(matrix, uint64_t{scale_row} * across + column / matrix.block_in);
}

/// The scale and zero point of a lane's columns, cached for the current row of scales: rows of a head mostly share one.
template <class Stored>
struct LaneScale {
  uint32_t block;                    // block index of the columns within a row of scales
  uint32_t scale_row = 0xffffffffU;  // initially none
  float scale = 1.0F;
  float zero = 0.0F;

  __device__ __forceinline__ LaneScale(const Matrix& matrix, uint32_t column) {
    const device::BlockOfRun<Stored> block_of(matrix);
    block = column < matrix.in ? block_of(column / Stored::kPerScale) : 0;
  }

  __device__ __forceinline__ void take(const Matrix& matrix, uint32_t across, uint32_t row) {
    if (row == scale_row) return;
    scale_row = row;
    const uint64_t index = uint64_t{row} * across + block;
    if (matrix.planes[kScales] != nullptr)
      scale = device::kIsPacked<Stored> ? device::decode_scale(matrix, index)
                                        : static_cast<const float*>(matrix.planes[kScales])[index];
    if constexpr (device::kHasZeros<Stored>) zero = device::decode_zero(matrix, index);
  }
};

/// A lane's columns in the rows of its share.
template <class Stored, unsigned kTokens, bool kAligned>
class ShareOfHead {
 public:
  __device__ __forceinline__ ShareOfHead(const HeadLinearTask& task, const device::HeadPart& part,
                                         const ThreadColumns& place, const device::ScaleRows& scale_rows)
      : matrix_(task.weight), place_(place), scale_(task.weight, place.column) {
    if (place.share >= task.rows_used || place.column >= matrix_.in) return;
    left_ = (task.rows_used - place.share - 1) / kShares + 1;
    if constexpr (kAligned) {
      const uint32_t row = part.head * task.head_rows + task.first_row + place.share;
      from_ = device::aligned_row<Stored>(matrix_, row) + place.column / kColumns * Four<Stored>::kBytes;
      ask();
      scale_.take(matrix_, scale_rows.blocks_a_row, scale_rows.block_of(row));  // a load from memory, like the weights
    }
  }

  /// Adds this share's rows of the tile.
  __device__ __forceinline__ void add(const device::ScaleRows& scale_rows, const RowTile& tile) {
    if constexpr (kAligned) {
      static_assert(kHeadRowTile % (kShares * kRowsAhead<Stored>) == 0);
      for (uint32_t first = place_.share; first < tile.rows && place_.column < matrix_.in;
           first += kShares * kRowsAhead<Stored>) {
        Word words[kRowsAhead<Stored>];
#pragma unroll
        for (unsigned i = 0; i < kRowsAhead<Stored>; ++i)
          words[i] = ahead_[i];
        ask();
#pragma unroll
        for (unsigned i = 0; i < kRowsAhead<Stored>; ++i) {
          const uint32_t row = first + i * kShares;
          if (row >= tile.rows) break;
          scale_.take(matrix_, scale_rows.blocks_a_row, tile.scale_rows[row]);
          add_row(words[i], tile.inputs + row * kTokens);
        }
      }
    } else {
      for (uint32_t row = place_.share; row < tile.rows; row += kShares)
        add_odd_row(tile.first_row + row, tile.scale_rows[row], tile.inputs + row * kTokens);
    }
  }

  [[nodiscard]] __device__ __forceinline__ float4 sums(unsigned token) const {
    const float(&mine)[kColumns] = sums_[token];
    return make_float4(mine[0], mine[1], mine[2], mine[3]);
  }

 private:
  using Word = typename Four<Stored>::Word;

  __device__ __forceinline__ void ask() {
    const uint64_t step_bytes = uint64_t{kShares} * (matrix_.in / Stored::kPer16 * 16);
#pragma unroll
    for (unsigned i = 0; i < kRowsAhead<Stored>; ++i) {
      if (i < left_) ahead_[i] = *reinterpret_cast<const Word*>(from_ + i * step_bytes);
    }
    from_ += kRowsAhead<Stored> * step_bytes;
    left_ -= left_ < kRowsAhead<Stored> ? left_ : kRowsAhead<Stored>;
  }

  /// sums[token][i] += (input[token] * scale) * weight[i] for one row.
  __device__ __forceinline__ void add_row(const Word& word, const float* inputs) {
    float weights[kColumns];
    Four<Stored>::decode(word, weights);
#pragma unroll
    for (unsigned i = 0; i < kColumns; ++i) {
      if constexpr (device::kHasZeros<Stored>) weights[i] -= scale_.zero;
    }
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
      const float scaled = inputs[token] * scale_.scale;
#pragma unroll
      for (unsigned i = 0; i < kColumns; ++i)
        sums_[token][i] = gpu::fma_rn(scaled, weights[i], sums_[token][i]);
    }
  }
  /// Same for unaligned rows, where every value may have its own scale.
  __device__ __forceinline__ void add_odd_row(uint32_t row, uint32_t scale_row, const float* inputs) {
    const uint64_t at = device::code_index<Stored>(matrix_.in, row, place_.column);
#pragma unroll
    for (unsigned i = 0; i < kColumns; ++i) {
      const uint32_t column = place_.column + i;
      float weight = column < matrix_.in ? Stored::decode_one(matrix_.planes[kCodes], at + i) : 0.0F;
      const float scale = scale_at<Stored>(matrix_, scale_row, column);
      if constexpr (device::kHasZeros<Stored>) weight -= zero_at<Stored>(matrix_, scale_row, column);
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token)
        sums_[token][i] = gpu::fma_rn(inputs[token] * scale, weight, sums_[token][i]);
    }
  }

  const Matrix& matrix_;
  const ThreadColumns& place_;
  LaneScale<Stored> scale_;
  const uint8_t* from_ = nullptr;  // the columns in the next row to load
  uint32_t left_ = 0;              // rows left to load
  Word ahead_[kRowsAhead<Stored>] = {};
  float sums_[kTokens][kColumns] = {};
};

/// Adds the sums of the shares and stores them.
template <unsigned kTokens, class Share>
__device__ __forceinline__ void store_sums(const HeadLinearTask& task, const device::HeadPart& part,
                                           const ThreadColumns& place, const Share& share, float4* shared) {
#pragma unroll
  for (unsigned token = 0; token < kTokens; ++token)
    shared[(token * kShares + place.share) * place.lanes + place.lane] = share.sums(token);
  gpu::block_barrier();  // the sums of all shares are stored
  const uint32_t columns = place.lanes * kColumns;
  const uint32_t first_column = part.block * columns;
  for (uint32_t i = gpu::thread_index(); i < part.tokens * columns; i += gpu::block_threads()) {
    const uint32_t token = i >> gpu::popc(columns - 1);  // a power of two
    const uint32_t column = i & (columns - 1);
    const float* of_shares = reinterpret_cast<const float*>(shared) + token * kShares * columns + column;
    float total = 0;
#pragma unroll
    for (unsigned other = 0; other < kShares; ++other)
      total += of_shares[other * columns];
    if (first_column + column < task.weight.in)
      device::output_of(task, part.first_token + token, part.head)[first_column + column] = total;
  }
}

template <class Stored, unsigned kTokens, bool kAligned>
__device__ __forceinline__ void multiply_transposed(const HeadLinearTask& task, const device::HeadBlocks& blocks,
                                                    uint32_t lanes) {
  gpu::launch_dependents();
  const device::HeadPart part = device::part_of_block<kTokens>(task, blocks);
  if (part.tokens == 0) return gpu::griddepcontrol_wait();
  const ThreadColumns place = ThreadColumns::of_thread(part.block, lanes);
  auto* shared_sums = gpu::shared_memory<float4>();
  RowTile tile;
  tile.inputs = reinterpret_cast<float*>(shared_sums + kTokens * kShares * lanes);
  tile.scale_rows = reinterpret_cast<uint32_t*>(tile.inputs + kHeadRowTile * kTokens);
  const device::ScaleRows scale_rows(task.weight);
  ShareOfHead<Stored, kTokens, kAligned> share(task, part, place, scale_rows);
  gpu::griddepcontrol_wait();
  for (uint32_t first = 0; first < task.rows_used; first += kHeadRowTile) {
    tile.first_row = part.head * task.head_rows + task.first_row + first;
    tile.rows = task.rows_used - first < kHeadRowTile ? task.rows_used - first : kHeadRowTile;
    if (first > 0) gpu::block_barrier();  // every thread has finished the previous tile
    stage_rows<kTokens>(task, part, scale_rows, first, tile);
    gpu::block_barrier();  // the tile is staged
    share.add(scale_rows, tile);
  }
  store_sums<kTokens>(task, part, place, share, shared_sums);
}

template <class Stored, unsigned kTokens, bool kAligned>
__global__ void __launch_bounds__(device::kHeadThreads)
    transposed_kernel(HeadLinearTask task, device::HeadBlocks blocks, uint32_t lanes) {
  multiply_transposed<Stored, kTokens, kAligned>(task, blocks, lanes);
}

/// Blocks after those of the heads rotate, one pair per thread.
template <class Stored, unsigned kTokens>
__global__ void __launch_bounds__(device::kHeadThreads)
    absorb_kernel(HeadLinearTask task, device::HeadBlocks blocks, uint32_t lanes, RotateTask rotated) {
  const uint32_t of_heads = task.heads * blocks.count;
  if (gpu::block_index().x < of_heads) return multiply_transposed<Stored, kTokens, true>(task, blocks, lanes);
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
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
  device::with_tokens<Stored, kAligned>(choice.tokens,
                                        [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>) {
                                          run(transposed_kernel<Stored, kTokens, kAligned>);
                                        });
}

constexpr uint64_t kEnoughBlocks = 256;
constexpr uint32_t kLeastLanes = 16;  // 64 bytes of an FP8 row

}  // namespace

HeadLinearChoice choose_head_linear_transposed(const HeadLinearTask& task) {
  const uint64_t fours = ceil_div(task.weight.in, kColumns);
  // Lanes per row: as few as keep every current card busy.
  uint32_t lanes = gpu::kWarpThreads;
  HeadLinearChoice choice = device::spread_heads(task, ceil_div(fours, lanes));
  while (lanes > kLeastLanes && uint64_t{choice.shape.grid_x} * choice.shape.grid_y < kEnoughBlocks) {
    lanes /= 2;
    choice = device::spread_heads(task, ceil_div(fours, lanes));
  }
  choice.lanes = lanes;
  choice.shape.threads = kShares * lanes;
  // The sums of every share, the inputs, and the scale row index of each matrix row.
  const uint64_t sums = uint64_t{choice.tokens} * kShares * lanes * kColumns;
  const uint64_t inputs = uint64_t{kHeadRowTile} * (choice.tokens + 1);
  choice.shape.shared_bytes = static_cast<unsigned>((sums + inputs) * sizeof(float));
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
         absorbed.rows <= kMaxKernelTokens;
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
    device::with_tokens<Stored, true>(choice.tokens, [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>) {
      run(absorb_kernel<Stored, kTokens>);
    });
  });
}

}  // namespace dspack::kernels::cuda
