// y = weight . x for FP32 activations.
//
//   linear_exact    FP32 with exactly decoded weights: matrix-vector products for a few rows, tiles of eight rows for
//                   more
//   linear_tensor   tensor cores, for precision modes bf16 and fp8: weights decoded exactly to BF16, inputs rounded to
//                   it before (rounded_rows.h), FP32 accumulation, scales applied to the FP32 sums of a chunk of
//                   columns
//
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/rounded_rows.h"
#include "kernels/cuda/runtime.h"

namespace dspack::kernels::cuda {

struct LinearTask {
  Matrix weight;
  RowsAt<const float> x;  // [rows, in]
  RowsAt<float> y;        // [rows, out]
  uint32_t rows = 0;
};

/// How a product is spread over a GPU. Pure. What a value depends on (warps_a_row) follows from the weight alone.
struct LinearChoice {
  unsigned warps_a_row = 1;  // that share a row's chunks: 1, 2 or 4
  unsigned tokens = 1;       // input rows a block works on: 1, 2, 4 or 8
  uint32_t tile_groups = 1;  // groups of 32 chunks in shared memory at once
  gpu::LaunchShape shape;
};
[[nodiscard]] LinearChoice choose_linear(Coding coding, uint32_t out, uint32_t in, uint32_t rows,
                                         unsigned multiprocessors);

void linear_exact(gpu::Stream& stream, const LinearTask& task, unsigned multiprocessors);

/// Whether the tensor cores can multiply a weight without rounding it: codes of four bits, E4M3 or BF16 in rows that
/// 16-byte reads fit, of the last two with no block of scales ending within a chunk of columns. Others take
/// linear_exact.
[[nodiscard]] bool fits_tensor_cores(const MatrixForm& weight);

/// Pure. What a value depends on (warps_a_row) follows from the weight alone.
struct TensorChoice {
  unsigned warps_a_row = 1;   // that share the columns of 16 rows: 1, 2, 4 or 8
  unsigned token_tiles = 1;   // of 8 input rows that a block works on: 1, 2, 4 or 8
  unsigned row_tiles = 1;     // of 16 rows that a warp works on: 2 where the inputs' reads would cost most
  uint32_t tile_columns = 0;  // in shared memory at once
  gpu::LaunchShape shape;
};
[[nodiscard]] TensorChoice choose_linear_tensor(Coding coding, uint32_t out, uint32_t in, uint32_t rows);

struct TensorTask {
  Matrix weight;
  RoundedRows x;    // of weight.in values
  RowsAt<float> y;  // [rows, out]
  uint32_t rows = 0;
};
/// Precondition: fits_tensor_cores; inputs are rounded as input_rounding says: to E4M3 those of FP8 weights only, as in
/// DeepSeek's own code, since router and head are BF16.
void linear_tensor(gpu::Stream& stream, const TensorTask& task);

}  // namespace dspack::kernels::cuda
