// Attention of a prompt's rows with a key and a value of every head (DeepSeek-V3 inference/model.py, class MLA,
// attn_impl "naive"), on tensor cores. A query of V3 then meets 192 + 128 numbers of a position and not 576 + 512, no
// query is absorbed and no value projected; but kv_b multiplies the latents of all positions first (expanded_keys.h).
// That pays from some 170 rows on. Some heads at a time, so that the scratch is bounded; of each
//
//   64 rows: softmax(queries . [key | rope]) . values, 64 positions at a time, all in registers
//
// Queries, latents, keys, values and softmax weights are rounded to BF16; scores, softmax and sums are FP32.
//
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/dtype.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/runtime.h"

namespace dspack::kernels::cuda {

struct ExpandedShape {
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;
  uint32_t positions = 0;  // that the last row sees
};

struct ExpandedAttendTask {
  Matrix kv_b;                  // [heads * (nope_dim + value_dim), latent_dim]
  const void* cache = nullptr;  // [positions] rows of cache_dtype; FP8: 16-byte aligned
  Dtype cache_dtype = Dtype::f32;
  RowsAt<const float> queries;   // [rows, heads, nope_dim + rope_dim]: the heads of a row are contiguous
  float* out = nullptr;          // [rows, heads, value_dim]
  std::byte* scratch = nullptr;  // of expanded_scratch_bytes, 256-byte aligned
  ExpandedShape shape;           // positions: first_position + rows
  uint32_t first_position = 0;
  float scale = 0;
};

/// Whether the kernel has the dimensions (multiples of 16, V3's or smaller) and the tensor cores the weight, of whose
/// scales none serves two heads.
[[nodiscard]] bool fits_expanded(const ExpandedShape& shape, const MatrixForm& kv_b, const gpu::Properties& properties);
/// Whether it takes fewer operations than absorbed attention. Pure.
[[nodiscard]] bool pays_to_expand(const ExpandedShape& shape);

/// How the work is cut. Pure.
struct ExpandedPlan {
  uint32_t heads = 1;   // at once
  uint32_t slice = 64;  // positions whose keys and values are made at once
};
[[nodiscard]] ExpandedPlan plan_expanded(const ExpandedShape& shape);
/// Grows with every number of the shape.
[[nodiscard]] uint64_t expanded_scratch_bytes(const ExpandedShape& shape);

/// Precondition: fits_expanded.
void attend_expanded(gpu::Stream& stream, const ExpandedAttendTask& task);

}  // namespace dspack::kernels::cuda
