// A block takes one tile (up to 8 or 64 assignments of one expert); each of its warps two times 16 matrix rows: the
// same 16 of gate and up, or 32 of down. The tile's inputs, rounded to BF16, lie in shared memory, a part of their
// columns at a time; weights come from global memory straight into the registers of the lanes that multiply them
// (device/tile.cuh).
#include "kernels/cuda/experts_tensor.h"

#include "kernels/cuda/device/block_of_chunk.cuh"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/rounding.cuh"
#include "kernels/cuda/device/tile.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kMostWarps = 8;
constexpr unsigned kTileRows = 16;
constexpr unsigned kTileTokens = 8;
constexpr unsigned kRowTiles = 2;
constexpr unsigned kRowPaddingBytes = 16;

/// One tile, up to kTokenTiles * 8 assignments.
template <class Product, class Stored, unsigned kTokenTiles, bool kFp8>
struct TensorTile {
  static constexpr unsigned kChunk = 4 * Stored::kPer16;                            // columns
  static constexpr unsigned kOutputs = kTileRows * kRowTiles / Product::kMatrices;  // of a warp

  using Sums = float[kRowTiles][kTokenTiles][4];

  const device::ExpertProduct& task;
  const device::TileAt& tile;
  Matrix matrices[Product::kMatrices];
  uint32_t staged_columns;  // a multiple of 128
  unsigned char* shared;

  __device__ uint32_t row_bytes() const { return staged_columns * 2 + kRowPaddingBytes; }
  __device__ uint32_t scales_a_row() const { return staged_columns / device::kRoundedBlock; }
  __device__ float* input_scales() const {
    return reinterpret_cast<float*>(shared + kTokenTiles * kTileTokens * row_bytes());
  }

  /// The inputs' columns from `first` on. Assignments that there are not become zeros.
  __device__ void stage(uint32_t first) const {
    const uint32_t blocks = scales_a_row();
    const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
    for (uint32_t item = gpu::warp_index(); item < kTokenTiles * kTileTokens * blocks; item += warps) {
      const uint32_t token = item / blocks;
      const uint32_t column = first + item % blocks * device::kRoundedBlock;
      const bool is_there = token < tile.count && column < task.form.in;
      const float* from = task.x.data;
      if (is_there) from += device::assignment_of(task.tiles, tile, token) / task.slots * task.x.stride + column;
      device::stage_rounded_block<kFp8>(
          from, is_there ? static_cast<int64_t>(task.form.in - column) : 0,
          reinterpret_cast<uint2*>(shared + token * row_bytes() + item % blocks * device::kRoundedBlock * 2),
          input_scales() + token * blocks + item % blocks);
    }
  }

  /// What a lane multiplies: of each row tile its upper and its lower row.
  struct Rows {
    const uint8_t* data[kRowTiles][2];
    const float* scales[kRowTiles][2];  // null: none
  };

  /// Rows beyond the last are computed as the last, and not stored.
  __device__ __forceinline__ Rows find_rows(uint32_t first_row) const {
    Rows rows;
#pragma unroll
    for (unsigned row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      const Matrix& matrix = matrices[row_tile % Product::kMatrices];
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        uint32_t row = first_row + row_tile / Product::kMatrices * kTileRows + half * 8 + gpu::lane_index() / 4;
        row = row < task.form.out ? row : task.form.out - 1;
        rows.data[row_tile][half] =
            static_cast<const uint8_t*>(matrix.data) + uint64_t{row} * task.form.in * Stored::kBytes;
        rows.scales[row_tile][half] = device::scales_of(matrix, row);
      }
    }
    return rows;
  }

  /// totals += the chunk at `column` of the staged columns, all of whose weights lie in scale block `block` of their
  /// row.
  __device__ __forceinline__ void add_chunk(const uint4 (&bytes)[kRowTiles][2], const Rows& rows, uint32_t block,
                                            uint32_t column, Sums& totals) const {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
    device::TileWeights<Stored> weights[kRowTiles];
    float scales[kRowTiles][2];
#pragma unroll
    for (unsigned row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      weights[row_tile] = device::decode_rows<Stored>(bytes[row_tile][0], bytes[row_tile][1]);
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const float* scale = rows.scales[row_tile][half];
        scales[row_tile][half] = scale == nullptr ? 1.0F : scale[block];
      }
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
      for (unsigned row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        float sums[4] = {};
        device::multiply_chunk<Stored>(sums, weights[row_tile], inputs);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          float& total = totals[row_tile][tokens][i];
          total = gpu::fused_multiply_add(sums[i], scales[row_tile][i / 2] * input_scale[i % 2], total);
        }
      }
    }
  }

  /// The columns [first, end), which are staged.
  __device__ void add_columns(uint32_t first, uint32_t end, const Rows& rows, Sums& totals) const {
    const unsigned quad = gpu::lane_index() % 4;
    const device::BlockOfChunk<Stored> block_of(matrices[0]);
    // Weights of several chunks are under way before the first is used.
    constexpr unsigned kAhead = kTokenTiles == 1 ? 4 : kTokenTiles < 8 ? 2 : 1;
    for (uint32_t at = first; at < end; at += kAhead * kChunk) {
      uint4 bytes[kAhead][kRowTiles][2];
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        // The last chunk of a row may be shorter: its pieces of 16 bytes are whole.
        const uint32_t column = at + ahead * kChunk + quad * Stored::kPer16;
        const bool is_there = at + ahead * kChunk < end && column < task.form.in;
#pragma unroll
        for (unsigned row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
          for (unsigned half = 0; half < 2; ++half) {
            const uint8_t* from = rows.data[row_tile][half] + uint64_t{column} * Stored::kBytes;
            bytes[ahead][row_tile][half] = is_there ? gpu::load_streaming(from) : make_uint4(0, 0, 0, 0);
          }
        }
      }
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        const uint32_t column = at + ahead * kChunk;
        if (column < end) add_chunk(bytes[ahead], rows, block_of(column / Stored::kPer16), column - first, totals);
      }
    }
  }

  __device__ void store(uint32_t first_row, const Sums& totals) const {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
#pragma unroll
    for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const uint32_t token = tokens * kTileTokens + 2 * quad + i % 2;
        if (token >= tile.count) continue;
        float* y = task.y.data + device::assignment_of(task.tiles, tile, token) * task.y.stride;
#pragma unroll
        for (unsigned part = 0; part < kRowTiles / Product::kMatrices; ++part) {
          const uint32_t row = first_row + part * kTileRows + i / 2 * 8 + group;
          float sums[Product::kMatrices];
#pragma unroll
          for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix)
            sums[matrix] = totals[part * Product::kMatrices + matrix][tokens][i];
          if (row < task.form.out) y[row] = Product::finish(sums);
        }
      }
    }
  }

  __device__ void run() const {
    const uint32_t rows_of_block = gpu::block_threads() / gpu::kWarpThreads * kOutputs;
    for (uint32_t block_row = gpu::block_index().y * rows_of_block; block_row < task.form.out;
         block_row += gpu::grid_blocks().y * rows_of_block) {
      const uint32_t first_row = block_row + gpu::warp_index() * kOutputs;
      const Rows rows = find_rows(first_row);
      Sums totals = {};
      for (uint32_t first = 0; first < task.form.in; first += staged_columns) {
        gpu::block_barrier();  // every warp is done with the columns before
        stage(first);
        gpu::block_barrier();  // the inputs are there
        const uint32_t behind = first + staged_columns;
        add_columns(first, behind < task.form.in ? behind : task.form.in, rows, totals);
      }
      store(first_row, totals);
    }
  }
};

template <class Product, class Stored, unsigned kTokenTiles, bool kFp8>
__device__ void run_tile(const device::ExpertProduct& task, const device::TileAt& tile, uint32_t staged_columns) {
  TensorTile<Product, Stored, kTokenTiles, kFp8> work{
      task, tile, {}, staged_columns, gpu::shared_memory<unsigned char>()};
  for (Matrix& matrix : work.matrices)
    matrix = task.form;
  Product::find(task.table[tile.expert], work.matrices);
  work.run();
}

// Of many tokens two blocks share a multiprocessor, so that one multiplies while the other rounds its inputs; it
// costs a few spilled registers.
template <class Product, class Stored, unsigned kMostTokenTiles, bool kFp8>
__global__ void __launch_bounds__(kMostWarps* gpu::kWarpThreads, kMostTokenTiles == 1 ? 1 : 2)
    tensor_kernel(device::ExpertProduct task, uint32_t staged_columns) {
  const device::TileAt tile = device::find_tile(task.tiles);
  if (tile.count == 0) return;
  if constexpr (kMostTokenTiles > 1) {
    if (tile.count > 4 * kTileTokens)
      return run_tile<Product, Stored, kMostTokenTiles, kFp8>(task, tile, staged_columns);
    if (tile.count > 2 * kTileTokens) return run_tile<Product, Stored, 4, kFp8>(task, tile, staged_columns);
    if (tile.count > kTileTokens) return run_tile<Product, Stored, 2, kFp8>(task, tile, staged_columns);
  }
  run_tile<Product, Stored, 1, kFp8>(task, tile, staged_columns);
}

template <class Product, class Stored, bool kFp8>
void launch_product(gpu::Stream& stream, const ExpertsTask& experts, const MatrixForm& form,
                    device::ExpertProduct task) {
  const ExpertsTensorChoice choice = choose_experts_tensor(form, TensorTile<Product, Stored, 1, kFp8>::kOutputs,
                                                           experts.tokens, experts.top_k, experts.experts);
  task.form = device::matrix_of(form);
  const auto launch = [&](auto kernel) { gpu::launch(stream, choice.shape, kernel, task, choice.staged_columns); };
  if (choice.token_tiles == 1) return launch(tensor_kernel<Product, Stored, 1, kFp8>);
  launch(tensor_kernel<Product, Stored, 8, kFp8>);
}

template <class Stored, bool kFp8>
void run(gpu::Stream& stream, const ExpertsTask& task) {
  device::run_expert_steps(stream, task, tensor_tile(task.tokens),
                           [&]<class Product>(Product, const MatrixForm& form, const device::ExpertProduct& product) {
                             launch_product<Product, Stored, kFp8>(stream, task, form, product);
                           });
}

}  // namespace

void run_experts_tensor(gpu::Stream& stream, const ExpertsTask& task, Precision precision) {
  DSPACK_CHECK(experts_fit_tensor_cores(task.form), "experts that the tensor cores do not multiply exactly");
  const bool is_fp8 = precision == Precision::fp8;
  if (task.form.gate_up.dtype == Dtype::f8_e4m3) {
    is_fp8 ? run<device::StoredF8, true>(stream, task) : run<device::StoredF8, false>(stream, task);
  } else {
    is_fp8 ? run<device::StoredBf16, true>(stream, task) : run<device::StoredBf16, false>(stream, task);
  }
}

}  // namespace dspack::kernels::cuda
