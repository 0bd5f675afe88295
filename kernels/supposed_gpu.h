// A GPU that is not there, for plans: `dsrun plan --gpu-memory 24GB` asks what a run would hold in its memory.
// Threads: as a Device. Lifetime: owns its parts. Errors: those of a CPU device; unsupported, whatever is allocated.
#pragma once

#include <memory>

#include "kernels/cuda/host/cuda_library.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// A device with `memory_bytes` of memory, all of it free. Its operations take the memory that those of a CUDA device
/// with these options take (of them: precision, and cuBLASLt, which counts as there unless it is off); it allocates
/// nothing and computes nothing.
[[nodiscard]] Result<std::unique_ptr<Device>> suppose_gpu(uint64_t memory_bytes, const CudaOptions& options);

}  // namespace dspack::kernels
