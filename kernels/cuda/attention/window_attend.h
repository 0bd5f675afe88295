// Attention to a window of positions in a ring and to entries that stand for older ones, on a GPU
// (kernels/attention_arguments.h, WindowAttendArgs).
//
//   a warp per row and head   query and weighted sum in registers, each lane the values l, l + 32, ..
//   four keys at a time       scores by sums over the lanes; the running maximum and sum change once
//
// Warps of a block are heads of one row, so that they find each other's keys in the cache.
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
};
void run_window_attend(gpu::Stream& stream, const WindowAttendTask& task);

// Launch choices: pure.
[[nodiscard]] gpu::LaunchShape choose_window_attend_launch(uint32_t rows, uint32_t heads);

}  // namespace dspack::kernels::cuda
