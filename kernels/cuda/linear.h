// y = weight . x for FP32 activations: matrix-vector products for a few rows, and by tiles of eight rows for more.
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/runtime.h"

namespace dspack::kernels::cuda {

struct LinearTask {
  Matrix weight;
  RowsAt<const float> x;  // [rows, in]
  RowsAt<float> y;        // [rows, out]
  uint32_t rows = 0;
};

/// How a product is spread over a GPU. Pure. What a value depends on (warps_a_row) follows from the weight alone.
struct LinearChoice {
  unsigned warps_a_row = 1;  // that share a row's chunks: 1, 2 or 4
  unsigned tokens = 1;       // input rows a block works on: 1, 2, 4 or 8
  uint32_t tile_groups = 1;  // groups of 32 chunks in shared memory at once
  gpu::LaunchShape shape;
};
[[nodiscard]] LinearChoice choose_linear(Coding coding, uint32_t out, uint32_t in, uint32_t rows,
                                         unsigned multiprocessors);

void linear_exact(gpu::Stream& stream, const LinearTask& task, unsigned multiprocessors);

}  // namespace dspack::kernels::cuda
