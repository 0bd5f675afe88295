// Choosing tokens on a GPU: the greedy choice. (Choosing at random is the host's: runtime/generate/sampler.h.)
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/runtime.h"

namespace dspack::kernels::cuda {

/// ids[r] = the index of the largest of x[r]'s `cols` values, the lowest of equals; NaN counts as the largest (ops.h).
/// A block a row: a vocabulary of 129,280 values is half a megabyte, which one multiprocessor reads from the cache in
/// the time that a second launch takes.
struct ArgmaxTask {
  RowsAt<const float> x;
  uint32_t* ids = nullptr;
  uint32_t rows = 0;
  uint32_t cols = 0;
};
void run_argmax(gpu::Stream& stream, const ArgmaxTask& task);

/// Pure.
[[nodiscard]] gpu::LaunchShape choose_argmax_launch(uint32_t rows, uint32_t cols);

}  // namespace dspack::kernels::cuda
