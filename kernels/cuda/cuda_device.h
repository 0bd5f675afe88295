// The CUDA device: runs operations on one GPU, in order, behind the host's back.
// Threads: thread-safe. Errors: not_found (no driver, no such GPU), unsupported (a GPU that is too old), budget.
#pragma once

#include <memory>

#include "kernels/cuda/cuda_options.h"
#include "kernels/ops.h"

namespace dspack::kernels {

[[nodiscard]] Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options);

}  // namespace dspack::kernels
