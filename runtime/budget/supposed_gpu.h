// A GPU that is not there, for plans: `dsrun plan --gpu-memory 24GB` asks what a run would have where in its memory.
// Threads: as a Device. Lifetime: owns its parts. Errors: those of a CPU device; unsupported, whatever is allocated.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace dspack::runtime {

/// A device of so much memory, all of it free. It knows what kernels need besides, roughly as the CUDA library does (a
/// test compares them), allocates nothing and computes nothing.
[[nodiscard]] Result<std::unique_ptr<kernels::Device>> suppose_gpu(uint64_t memory_bytes);

}  // namespace dspack::runtime
