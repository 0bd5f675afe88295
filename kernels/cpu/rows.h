// Operations on rows of FP32 values, shared by all instruction sets: rotary embedding, LayerNorm, and stores to a KV
// cache as dense F32, BF16 or F16, or FP8 (kernels/latent_rows.h).
// Threads: pure except for the output. Lifetime: pointers are borrowed for the call. Errors: none; shapes have been
// checked.
#pragma once

#include <cstddef>

#include "format/dtype.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/latent_rows.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// Shape of FP32 rows, in values.
struct RowShape {
  uint32_t cols = 0;
  uint32_t stride = 0;
};

/// Rounds to nearest, ties to even; a finite value beyond F16's largest becomes that (kernels/ops.h).
void store_values(std::byte* to, Dtype dtype, const float* from, RowShape shape, RowRange rows);

/// `stride`: values from one FP32 row to the next. Stored rows are dense, including their padding.
void store_latent_rows(std::byte* to, LatentShape shape, const float* from, uint64_t stride, RowRange rows);

/// Rows of `cols` values in FP8, each with one scale.
void store_fp8_values(std::byte* codes, float* scales, const float* from, RowShape shape, RowRange rows);

/// y = (x - mean) / sqrt(variance + epsilon) * gain + bias of one row (kernels::Queue::layer_norm).
void layer_norm_row(const float* x, const float* gain, const float* bias, float epsilon, uint32_t cols, float* y);

/// Rotates args.rows x args.heads vectors. `data` and `cos_sin`: the memory of the slices of `args`.
void rotate(const RopeArgs& args, float* data, const float* cos_sin);

}  // namespace dspack::kernels
