// Residual streams that are mixed before and after each block (manifold-constrained hyper-connections), on a GPU.
// kernels/arguments.h defines both operations. As on the CPU, all but the streams themselves is computed in double
// precision, and sums over streams are in the same order, so only the mean of squares and exponentials differ.
// Threads: enqueue. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

/// ReadStreamsArgs with addresses; a block per row.
struct ReadStreamsTask {
  RowsAt<const float> streams;
  float* logits = nullptr;  // [rows, 2 count + count count], or [rows, count]; overwritten with the mixture
  const float* base = nullptr;
  const float* scale = nullptr;
  RowsAt<float> y;
  uint32_t rows = 0;
  uint32_t cols = 0;  // columns of y
  uint32_t count = 0;
  uint32_t rounds = 0;
  float norm_epsilon = 0;
  float epsilon = 0;
};
void run_read_streams(gpu::Stream& stream, const ReadStreamsTask& task);

/// JoinStreamsArgs with addresses; a thread per column of y and row.
struct JoinStreamsTask {
  RowsAt<float> streams;
  const float* mix = nullptr;  // [rows, 2 count + count count]
  RowsAt<const float> y;
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint32_t count = 0;
};
void run_join_streams(gpu::Stream& stream, const JoinStreamsTask& task);

// Launch choices: pure.
[[nodiscard]] gpu::LaunchShape choose_read_streams_launch(uint32_t rows, uint64_t values);

}  // namespace dspack::kernels::cuda
