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

#include <span>

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/rounded_rows.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/runtime.h"

namespace dspack::kernels::cuda {

struct LinearTask {
  Matrix weight;
  RowsAt<const float> x;  // [rows, in]
  RowsAt<float> y;        // [rows, out]
  uint32_t rows = 0;
  bool adds = false;  // y += weight . x
};

/// How a product is spread over a GPU. Pure. What a value depends on (warps_a_row) follows from the weight alone.
struct LinearChoice {
  unsigned warps_a_row = 1;  // that share a row's chunks: 1, 2 or 4
  unsigned tokens = 1;       // input rows a block works on (kernel_tokens)
  uint32_t tile_groups = 1;  // groups of 32 chunks in shared memory at once
  gpu::LaunchShape shape;
};
/// is_aligned: has_aligned_rows.
[[nodiscard]] LinearChoice choose_linear(Coding coding, uint32_t out, uint32_t in, uint32_t rows,
                                         unsigned multiprocessors, bool is_aligned = true);

void linear_exact(gpu::Stream& stream, const LinearTask& task, unsigned multiprocessors);

// Several products of one input in one launch, each with the bits of its own.

inline constexpr unsigned kMostProducts = 4;
/// Whether linear_exact_each takes these: at most kMostProducts, of weights that are stored alike and common
/// (matrix.h), in rows that 16-byte reads fit, and as few rows as one block takes.
[[nodiscard]] bool fits_one_launch(std::span<const LinearTask> tasks);
/// Precondition: fits_one_launch.
void linear_exact_each(gpu::Stream& stream, std::span<const LinearTask> tasks, unsigned multiprocessors);

// A router's product and what it chooses, in one launch, with the bits of two.

/// What follows a product, whose y are the logits, without gaps.
struct RouteEnd {
  RouteTask task;
  uint32_t* counter = nullptr;  // a word, zero, that no other stream uses; it is zero again when the stream has run
};
/// Whether linear_exact_route takes it: a router in BF16 or F32 without scales, in rows that 16-byte reads fit, and as
/// few rows as one block takes.
[[nodiscard]] bool takes_route(const LinearTask& task);
/// Precondition: takes_route.
void linear_exact_route(gpu::Stream& stream, const LinearTask& task, const RouteEnd& end, unsigned multiprocessors);

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
  unsigned ring_steps = 0;    // of a warp's ring of weights: 0 (none), 3, or 5 where blocks are few
  gpu::LaunchShape shape;
};
[[nodiscard]] TensorChoice choose_linear_tensor(Coding coding, uint32_t out, uint32_t in, uint32_t rows);

struct TensorTask {
  Matrix weight;
  RoundedRows x;    // of weight.in values
  RowsAt<float> y;  // [rows, out]
  uint32_t rows = 0;
  bool adds = false;  // y += weight . x
};
/// Precondition: fits_tensor_cores; inputs are rounded as input_rounding says: to E4M3 those of FP8 weights only, as in
/// DeepSeek's own code, since router and head are BF16.
void linear_tensor(gpu::Stream& stream, const TensorTask& task);

inline constexpr uint32_t kMostTensorRows = 8;
/// Several products of one input in one launch, each with the bits of its own. Precondition: at most kMostProducts, of
/// weights that are stored alike, and at most kMostTensorRows rows.
void linear_tensor_each(gpu::Stream& stream, std::span<const TensorTask> tasks);
/// As linear_exact_route. Precondition: takes_route, in BF16, and at most kMostTensorRows rows.
void linear_tensor_route(gpu::Stream& stream, const TensorTask& task, const RouteEnd& end);

}  // namespace dspack::kernels::cuda
