// Attention over the latent cache (MlaAttendArgs of kernels/ops.h) on CUDA: multi-query attention with keys
// [latent | rope] and values [latent], split over the positions ("flash decoding").
//
//   cache   0 ......... 63 | 64 ....... 127 | ..            a split: a multiple of 64 positions
//              split 0     |    split 1     |  split 2
//             m, l, O          m, l, O         m, l, O       maximum, sum of weights, weighted values
//                    \            |            /
//                      merged in this order -> out
//
// A query is one head of one row; number q is head q % heads of row q / heads. The split of a row follows from its own
// position and the number of heads, and the grid from the largest position that there may be: one recorded graph serves
// every position, and splits that a row does not have cost a block that returns at once.
// Exact mode: a value depends on its row alone. Cache rows that a query does not see, but another one of its call does,
// must be finite (they are multiplied by 0).
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked (kernels/checks.h).
#pragma once

#include <cstdint>

#include "format/dtype.h"
#include "kernels/cuda/runtime.h"

namespace dspack::kernels::cuda {

/// What launches are chosen by.
struct AttendShape {
  uint32_t rows = 0;  // of one call at most
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t position_limit = 0;  // no row stands here or beyond
};

/// MlaAttendArgs with addresses.
struct MlaAttendTask {
  const float* query_latent = nullptr;      // [rows, heads, latent_dim]
  const float* query_rope = nullptr;        // head h of row r at r * rope_row_stride + h * rope_head_stride
  const void* cache = nullptr;              // [position_limit] rows of cache_dtype; FP8: 16-byte aligned
  float* out = nullptr;                     // [rows, heads, latent_dim]
  float* partial = nullptr;                 // scratch of attend_scratch_bytes, 256-byte aligned
  const uint32_t* live_position = nullptr;  // added to first_position; null: nothing is
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t rope_row_stride = 0;
  uint32_t rope_head_stride = 0;
  uint32_t first_position = 0;
  uint32_t position_limit = 0;
  float scale = 0;
  Dtype cache_dtype = Dtype::f32;  // f32, bf16, f16 or f8_e4m3 (kernels/latent_rows.h)
};
[[nodiscard]] AttendShape shape_of(const MlaAttendTask& task);

/// FP32 on the ordinary cores, or BF16 on the tensor cores: how many queries share a block, and how many tiles of 64
/// keys lie in shared memory (with two, one is loaded while the other is used).
enum class AttendChoice { exact, tensor_64x2, tensor_64x1, tensor_16x2, tensor_16x1 };
/// What tensor mode runs: tensor cores where the dimensions are multiples of 16, V3's or smaller, and the tiles fit;
/// else `exact`. Many queries a block, since each key that is loaded then serves many; few where there are no more.
[[nodiscard]] AttendChoice attend_choice(const AttendShape& shape, const gpu::Properties& properties);

/// How the positions of a call are cut, and what that needs. Pure.
struct AttendSplits {
  uint32_t most = 1;        // splits of a row at most; its positions are cut into as many, rounded up to 64
  uint32_t slots = 1;       // splits that a row below the limit can have
  uint32_t rows_a_run = 1;  // rows that fit the scratch at once
  uint64_t scratch_bytes = 0;
};
[[nodiscard]] AttendSplits attend_splits(const AttendShape& shape, AttendChoice choice);
/// The block of the first of the two kernels.
[[nodiscard]] gpu::LaunchShape attend_launch(const AttendShape& shape, AttendChoice choice);

/// Scratch that serves every choice for calls of this shape, or of fewer rows or positions.
[[nodiscard]] uint64_t attend_scratch_bytes(const AttendShape& shape);

/// FP32 arithmetic; the cache is decoded exactly.
void attend_exact(gpu::Stream& stream, const MlaAttendTask& task);
/// Queries, keys and softmax weights rounded to BF16; scores, softmax and sums in FP32. `choice` is not `exact`. A call
/// of many queries (kUnsplitQueries) cuts no row: there its rounding differs from that of calls of few rows.
void attend_tensor(gpu::Stream& stream, const MlaAttendTask& task, AttendChoice choice);

/// So many queries keep a GPU busy without splits, whose partial results would cost more than the cache itself.
inline constexpr uint32_t kUnsplitQueries = 8192;

}  // namespace dspack::kernels::cuda
