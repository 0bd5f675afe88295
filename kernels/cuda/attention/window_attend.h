// Attention to a window of positions in a ring and to entries that stand for older ones, on a GPU
// (kernels/attention_arguments.h, WindowAttendArgs).
//
//   a row's keys              in up to 16 parts of at least 64, each with a maximum, a sum of weights and a weighted
//                             sum; these are added in order
//   a warp per row and head   query and weighted sum in registers, each lane the values l, l + 32, ..
//   four keys at a time       scores by sums over the lanes; the running maximum and sum change once
//
// Warps of a block are heads of one row, so that they find each other's keys in the cache. Of few rows each part has a
// block of its own, and a second launch adds them up, with the bits of a warp that takes all parts. A row's bits depend
// on nothing but the row.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked; choices in device memory have not.
#pragma once

#include <cstdint>

#include "format/dtype.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

/// Most values of a key: a lane's are in registers.
inline constexpr uint32_t kMaxWindowDim = 512;

/// WindowAttendArgs with addresses.
struct WindowAttendTask {
  const float* queries = nullptr;
  const void* ring = nullptr;
  uint32_t ring_rows = 0;
  uint32_t window = 0;
  const void* entries = nullptr;  // null: none
  uint32_t every = 0;
  const uint32_t* chosen = nullptr;  // [rows, most]; null: all entries that a row may see
  const uint32_t* counts = nullptr;
  uint32_t most = 0;
  const float* sinks = nullptr;
  float* out = nullptr;
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t dim = 0;  // at most kMaxWindowDim
  uint32_t first_position = 0;
  const uint32_t* live = nullptr;  // added to first_position; null: 0
  float scale = 0;
  Dtype dtype = Dtype::f32;
  float* partial = nullptr;  // window_scratch_bytes, if not 0
  uint64_t most_keys = 0;    // that a row sees, window and entries
};
void run_window_attend(gpu::Stream& stream, const WindowAttendTask& task);

/// Most rows whose parts have blocks of their own: those of a decode pass.
inline constexpr uint32_t kMaxSplitRows = 8;
/// Parts of a row's keys, at most.
inline constexpr uint32_t kWindowParts = 16;

/// Bytes of the parts' sums; 0: a warp takes all parts. Pure.
[[nodiscard]] constexpr uint64_t window_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t dim) {
  if (rows > kMaxSplitRows) return 0;
  return uint64_t{rows} * heads * kWindowParts * (uint64_t{dim} + 2) * sizeof(float);
}

}  // namespace dspack::kernels::cuda
