// Operations on rows on a GPU: norm, activation, sums, rotation, conversion, copies. kernels/ops.h defines each; the
// CPU's order of roundings is kept except in the norm's sum of squares.
// Threads: enqueue. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked; positions and row numbers in device memory have not.
#pragma once

#include <cstdint>

#include "format/dtype.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/cuda/tokens/rounded_rows.h"

namespace dspack::kernels::cuda {

/// y = x / sqrt(mean(x^2) + epsilon) * gain. y may be x. The order of the sum of squares depends only on `cols`: thread
/// t of a block takes values 4 t to 4 t + 3, then those 4 threads further on, ... by fma; then lanes 16 apart are
/// added, 8, 4, 2, 1; then warps in the same way. `gain` is a weight: no overlapping launch may write it.
struct RmsNormTask {
  RowsAt<const float> x;
  RowsAt<float> y;
  const float* gain = nullptr;  // null: 1
  float epsilon = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  /// Also rounds y, for products on tensor cores, if these have values. E4M3 has scales, BF16 none.
  RoundedRows bf16 = {}, fp8 = {};
};
void run_rms_norm(gpu::Stream& stream, const RmsNormTask& task);
/// Whether rows and gain can be read and written 16 bytes at a time. Pure.
[[nodiscard]] bool has_fours(const RmsNormTask& task);
/// Whether the library has code for the open device. All its kernels are compiled for the same devices.
[[nodiscard]] bool has_code_for_device();

/// Two operands of the same shape; `to` is read and written.
struct RowPairTask {
  RowsAt<float> to;
  RowsAt<const float> from;
  uint32_t rows = 0;
  uint32_t cols = 0;
};
/// to = silu(min(to, limit)) * clamp(from, -limit, limit); NaN stays.
void run_silu_multiply(gpu::Stream& stream, const RowPairTask& task, float limit);
/// As run_silu_multiply, also rounded.
void run_silu_multiply_rounded(gpu::Stream& stream, const RowPairTask& task, const RoundedRows& rounded, float limit);
/// to += from.
void run_add(gpu::Stream& stream, const RowPairTask& task);

/// y[r] = sum over slot < top_k, in this order and by fma from zero, of weights[r, slot] * parts[r * top_k + slot].
/// Then `more` is added to the sum, and with `adds` the sum to the previous y.
struct WeightedSumTask {
  RowsAt<float> y;
  RowsAt<const float> parts;
  const float* weights = nullptr;  // [rows, top_k]
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint32_t top_k = 0;
  RowsAt<const float> more = {};  // [rows, cols]; null: none
  bool adds = false;              // y += instead of y =
};
void run_weighted_sum(gpu::Stream& stream, const WeightedSumTask& task);
/// Same for parts stored elsewhere: part i is row places[i] of `parts`. `places`: on the device.
void run_placed_sum(gpu::Stream& stream, const WeightedSumTask& task, const uint32_t* places);

/// y = (x - mean) / sqrt(variance + epsilon) * gain + bias. y may be x. One warp per row; sums are in double precision,
/// in an order that depends only on `cols`: lane l takes l, l + 32, ...; then the lanes are added, ascending.
struct LayerNormTask {
  RowsAt<const float> x;
  RowsAt<float> y;
  const float* gain = nullptr;
  const float* bias = nullptr;
  float epsilon = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
};
void run_layer_norm(gpu::Stream& stream, const LayerNormTask& task);

/// RopeArgs with addresses. Row r is at position first_position + *live + r.
struct RotateTask {
  float* data = nullptr;
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t dim = 0;
  uint32_t apart = 1;  // values between the two of a pair
  uint32_t step = 2;   // values between pairs
  uint64_t head_stride = 0;
  uint64_t row_stride = 0;
  uint32_t first_position = 0;
  const float* cos_sin = nullptr;
  const uint32_t* live = nullptr;  // null: 0
  bool inverse = false;            // by the negative angle
};
void run_rotate(gpu::Stream& stream, const RotateTask& task);

/// Stores rows contiguously as f32, bf16 or f16; the first goes first_row + *live rows after `to`, in a ring modulo its
/// rows.
struct StoreRowsTask {
  void* to = nullptr;
  Dtype dtype = Dtype::f32;
  RowsAt<const float> from;
  uint32_t rows = 0;
  uint32_t cols = 0;
  const uint32_t* live = nullptr;  // null: 0
  uint32_t first_row = 0;
  uint32_t ring_rows = 0;  // 0: no ring
};
void run_store_rows(gpu::Stream& stream, const StoreRowsTask& task);

/// Copies bytes. One place may be pinned host memory, which the kernel reads or writes across the link itself, so the
/// copy never waits for a copy engine.
struct CopyTask {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t bytes = 0;
};
void run_copy(gpu::Stream& stream, const CopyTask& task);

struct MoveRowsTask {
  RowsAt<float> to;
  RowsAt<const float> from;
  const uint32_t* index = nullptr;  // [rows], on the device
  uint32_t rows = 0;
  uint32_t cols = 0;
};
/// to[i] = from[index[i]].
void run_gather_rows(gpu::Stream& stream, const MoveRowsTask& task);
/// to[index[i]] = from[i]; no row appears twice.
void run_scatter_rows(gpu::Stream& stream, const MoveRowsTask& task);

// Launch choices: pure. Kernels loop over rows with stride grid_y.
[[nodiscard]] gpu::LaunchShape choose_rows_launch(uint32_t rows, uint32_t cols);
inline constexpr unsigned kMaxNormThreads = 1024;
[[nodiscard]] gpu::LaunchShape choose_norm_launch(uint32_t rows, uint32_t cols);
[[nodiscard]] gpu::LaunchShape choose_layer_norm_launch(uint32_t rows);
/// `units`: each is one thread's copy.
[[nodiscard]] gpu::LaunchShape choose_copy_launch(uint64_t units);

}  // namespace dspack::kernels::cuda
