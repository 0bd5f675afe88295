// y = weight . x for FP32 activations.
//
//   linear_exact    FP32 with exactly decoded weights: matrix-vector products for a few rows, tiles of eight rows for
//                   more
//   linear_tensor   tensor cores, for precision modes bf16 and fp8: weights decoded exactly to BF16, inputs rounded to
//                   BF16 beforehand (rounded_rows.h), FP32 accumulation, scales applied to the FP32 sums of a chunk of
//                   columns
//
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <span>

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/cuda/tokens/rounded_rows.h"
#include "kernels/cuda/tokens/route.h"

namespace dspack::kernels::cuda {

struct LinearTask {
  Matrix weight;
  RowsAt<const float> x;  // [rows, in]
  RowsAt<float> y;        // [rows, out]
  uint32_t rows = 0;
  bool adds = false;  // y += weight . x
};

/// How a product is spread over a GPU. Pure. The only choice that affects values, warps_a_row, depends on the weight
/// alone.
struct LinearChoice {
  unsigned warps_a_row = 1;  // warps that share a row's chunks: 1, 2, 4 or 8
  unsigned tokens = 1;       // input rows per block (kernel_tokens)
  uint32_t tile_groups = 1;  // groups of 32 chunks in shared memory at once
  gpu::LaunchShape shape;
};
/// is_aligned: has_aligned_rows.
[[nodiscard]] LinearChoice choose_linear(Coding coding, uint32_t out, uint32_t in, uint32_t rows,
                                         unsigned multiprocessors, bool is_aligned = true);

void linear_exact(gpu::Stream& stream, const LinearTask& task, unsigned multiprocessors);

// Several products of one input in one launch, each with the bits of a separate one.

inline constexpr unsigned kMaxProducts = 4;
/// Whether linear_exact_each takes these: at most kMaxProducts, with weights of the same, common coding (matrix.h), in
/// rows that allow 16-byte reads, and no more input rows than one block takes.
[[nodiscard]] bool fits_one_launch(std::span<const LinearTask> tasks);
/// Precondition: fits_one_launch.
void linear_exact_each(gpu::Stream& stream, std::span<const LinearTask> tasks, unsigned multiprocessors);

// A router's product and its choice in one launch, with the bits of two.

/// The router's choice after its product, whose y are the logits, contiguous.
struct RouteEnd {
  RouteTask task;
  uint32_t* counter = nullptr;  // one word, zero, used by no other stream; zero again when the stream has run
};
/// Whether linear_exact_route takes it: a router in BF16 or F32 without scales, in rows that allow 16-byte reads, and
/// no more input rows than one block takes.
[[nodiscard]] bool takes_route(const LinearTask& task);
/// Precondition: takes_route.
void linear_exact_route(gpu::Stream& stream, const LinearTask& task, const RouteEnd& end, unsigned multiprocessors);

/// Whether the tensor cores can multiply a weight without rounding it: four-bit codes, E4M3 or BF16, in rows that allow
/// 16-byte reads; for the last two no scale block may end within a chunk of columns. E2M1: in rows of whole chunks,
/// with scales of eight bits for 16 or 32 columns. Otherwise use linear_exact.
[[nodiscard]] bool fits_tensor_cores(const MatrixForm& weight);

/// Pure. The only choice that affects values, warps_a_row, depends on the weight alone.
struct TensorChoice {
  unsigned warps_a_row = 1;   // warps that share the columns of 16 rows: 1, 2, 4 or 8
  unsigned token_tiles = 1;   // tiles of 8 input rows per block: 1, 2, 4 or 8
  unsigned row_tiles = 1;     // tiles of 16 weight rows per warp: 2 if reading inputs would dominate
  uint32_t tile_columns = 0;  // columns in shared memory at once
  unsigned ring_steps = 0;    // steps in a warp's ring of weights: 0 (no ring), 3, or 5 if blocks are few
  gpu::LaunchShape shape;
};
[[nodiscard]] TensorChoice choose_linear_tensor(Coding coding, uint32_t out, uint32_t in, uint32_t rows);

struct TensorTask {
  Matrix weight;
  RoundedRows x;    // weight.in values per row
  RowsAt<float> y;  // [rows, out]
  uint32_t rows = 0;
  bool adds = false;  // y += weight . x
};
/// Precondition: fits_tensor_cores; inputs are rounded by input_rounding: to E4M3 only for FP8 weights, as in
/// DeepSeek's own code, since router and head are BF16.
void linear_tensor(gpu::Stream& stream, const TensorTask& task);

inline constexpr uint32_t kMaxTensorRows = 8;
/// Several products of one input in one launch, each with the bits of a separate one. Precondition: at most
/// kMaxProducts, with weights of the same coding, and at most kMaxTensorRows rows.
void linear_tensor_each(gpu::Stream& stream, std::span<const TensorTask> tasks);
/// As linear_exact_route. Precondition: takes_route, in BF16, and at most kMaxTensorRows rows.
void linear_tensor_route(gpu::Stream& stream, const TensorTask& task, const RouteEnd& end);

}  // namespace dspack::kernels::cuda
