// The likeliest token on a GPU.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

/// The largest value of a part of a row.
struct Highest {
  uint32_t order = 0;  // device::order_of; 0: below every value
  uint32_t index = 0;  // in the row; the lowest among equals
};

/// ids[r] = the index of the largest of x[r]'s `cols` values, the lowest among equals; kNoToken if that value is not
/// finite. One launch: several blocks per row, the last of which to end compares the results of all.
struct ArgmaxTask {
  RowsAt<const float> x;
  uint32_t* ids = nullptr;
  uint32_t rows = 0;
  uint32_t cols = 0;
  Highest* of_parts = nullptr;  // [rows, parts]
  uint32_t* counter = nullptr;  // one word, zero, used by no other stream; zero again when the stream has run
};
void run_argmax(gpu::Stream& stream, const ArgmaxTask& task);

/// x: rows, y: parts of each. Pure.
[[nodiscard]] gpu::LaunchShape choose_argmax_launch(uint32_t rows, uint32_t cols);
/// Bytes of ArgmaxTask::of_parts. Pure.
[[nodiscard]] inline uint64_t argmax_scratch_bytes(uint32_t rows, uint32_t cols) {
  return uint64_t{rows} * choose_argmax_launch(rows, cols).grid_y * sizeof(Highest);
}

}  // namespace dspack::kernels::cuda
