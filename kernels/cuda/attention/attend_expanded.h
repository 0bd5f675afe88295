// Attention of a prompt's rows with a key and a value for every head (DeepSeek-V3 inference/model.py, class MLA,
// attn_impl "naive"), on tensor cores. A query of V3 then multiplies 192 + 128 numbers per position instead of 576 +
// 512, and no query is absorbed and no value projected; but kv_b first multiplies the latents of all positions
// (expanded_keys.h). That pays from some 170 rows on. Some heads at a time, so that the scratch is bounded; for each
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
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

struct ExpandedShape {
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;
  uint32_t positions = 0;  // visible to the last row

  /// A key without its rotary part, then a value.
  [[nodiscard]] constexpr uint32_t head_dim() const { return nope_dim + value_dim; }
};

inline constexpr uint32_t kExpandedTileQueries = 64;    // queries of a head per block
inline constexpr uint32_t kExpandedTilePositions = 64;  // positions in shared memory at once

struct ExpandedAttendTask {
  Matrix kv_b;                  // [heads * (nope_dim + value_dim), latent_dim]
  const void* cache = nullptr;  // [positions] rows of cache_dtype; FP8: 16-byte aligned
  Dtype cache_dtype = Dtype::f32;
  RowsAt<const float> queries;   // [rows, heads, nope_dim + rope_dim]: the heads of a row are contiguous
  float* out = nullptr;          // [rows, heads, value_dim]
  std::byte* scratch = nullptr;  // expanded_scratch_bytes, 256-byte aligned
  ExpandedShape shape;           // positions: first_position + rows
  uint32_t first_position = 0;
  float scale = 0;
};

/// Whether the kernel supports the dimensions (multiples of 16, V3's or smaller) and the tensor cores the weight, and
/// no scale of the weight spans two heads.
[[nodiscard]] bool fits_expanded(const ExpandedShape& shape, const MatrixForm& kv_b, const gpu::Properties& properties);
/// Whether this takes fewer operations than absorbed attention. Pure.
[[nodiscard]] bool pays_to_expand(const ExpandedShape& shape);

/// How the work is divided. Pure.
struct ExpandedPlan {
  uint32_t heads = 1;   // heads at once
  uint32_t slice = 64;  // positions expanded at once
};
[[nodiscard]] ExpandedPlan plan_expanded(const ExpandedShape& shape);

/// Addresses in the scratch. Pure; null `memory`: only the size.
struct ExpandedScratch {
  std::byte* latents = nullptr;  // rounded_bytes of a slice
  float* made = nullptr;         // kv_b's result before rounding: [slice, heads, head_dim]
  uint16_t* keys = nullptr;      // BF16 [heads, positions, head_dim]
  uint16_t* ropes = nullptr;     // BF16 [positions, rope_dim]
  uint64_t size_bytes = 0;
};
[[nodiscard]] ExpandedScratch lay_out_expanded(std::byte* memory, const ExpandedShape& shape);
/// Monotonic in every number of the shape.
[[nodiscard]] uint64_t expanded_scratch_bytes(const ExpandedShape& shape);

/// Precondition: fits_expanded.
void attend_expanded(gpu::Stream& stream, const ExpandedAttendTask& task);

}  // namespace dspack::kernels::cuda
