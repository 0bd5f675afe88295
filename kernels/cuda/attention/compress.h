// Entries that stand for several positions each, on a GPU (kernels/attention_arguments.h, CompressArgs): a block per
// entry, a thread per channel; then the last rows are kept for later entries, by a launch of their own.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "format/dtype.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

/// CompressArgs with addresses.
struct CompressTask {
  RowsAt<const float> values, gates;
  const float* ape = nullptr;
  float* state = nullptr;
  uint32_t state_rows = 0;
  void* entries = nullptr;
  Dtype dtype = Dtype::f32;
  const float* gain = nullptr;
  float epsilon = 0;
  const float* cos_sin = nullptr;
  uint32_t rope_dim = 0;
  uint32_t dim = 0;
  uint32_t width = 0;  // columns of values and gates
  uint32_t every = 0;
  bool overlaps = false;
  uint32_t first_position = 0;
  const uint32_t* live = nullptr;  // added to first_position; null: 0
  uint32_t rows = 0;
};
void run_compress(gpu::Stream& stream, const CompressTask& task);

}  // namespace dspack::kernels::cuda
