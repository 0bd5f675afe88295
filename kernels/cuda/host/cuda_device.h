// The CUDA device: buffers in the GPU's memory, a queue for each stream.
// Threads: thread-safe. Errors: not_found (no driver or no such GPU), unsupported (a GPU older than compute capability
// 8.0), budget.
#pragma once

#include <memory>

#include "kernels/cuda/host/cuda_library.h"
#include "kernels/ops.h"

namespace dspack::kernels {

[[nodiscard]] Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options);

}  // namespace dspack::kernels
