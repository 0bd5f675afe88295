// Operations on rows of FP32 values that are the same code for every instruction set: rotary embedding,
// LayerNorm, and the rows of a KV cache in their stored forms: dense F32, BF16 or F16, and FP8 (kernels/latent_rows.h).
// Threads: pure but for the output. Lifetime: pointers are borrowed for the call. Errors: none; shapes have been
// checked.
#pragma once

#include <cstddef>

#include "format/dtype.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/latent_rows.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// Of FP32 rows, in values.
struct RowShape {
  uint32_t cols = 0;
  uint32_t stride = 0;
};

/// Rounds to the nearest, ties to even; a number beyond F16's largest (kernels/ops.h) becomes that.
void store_values(std::byte* to, Dtype dtype, const float* from, RowShape shape, RowRange rows);

/// `stride`: values from one FP32 row to the next. Stored rows are dense, and written with all of their padding.
void store_latent_rows(std::byte* to, LatentShape shape, const float* from, uint64_t stride, RowRange rows);

/// Rows of `cols` values in FP8, each with one scale.
void store_fp8_values(std::byte* codes, float* scales, const float* from, RowShape shape, RowRange rows);

/// y = (x - mean) / sqrt(variance + epsilon) * gain + bias of one row (kernels::Queue::layer_norm).
void layer_norm_row(const float* x, const float* gain, const float* bias, float epsilon, uint32_t cols, float* y);

/// Rotates args.rows x args.heads vectors. `data` and `cos_sin` are where the slices of `args` point.
void rotate(const RopeArgs& args, float* data, const float* cos_sin);

}  // namespace dspack::kernels
