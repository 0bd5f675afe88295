// A hypothetical GPU, for plans: `dsrun plan --gpu-memory 24GB` asks what a run would hold in its memory.
// Threads: as a Device. Lifetime: owns its parts. Errors: those of a CPU device; unsupported, whatever is allocated.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace dspack::runtime {

/// A device with `memory_bytes` of memory, all of it free. It knows how much more memory kernels need, roughly as the
/// CUDA library does (a test compares them), allocates nothing and computes nothing.
[[nodiscard]] Result<std::unique_ptr<kernels::Device>> suppose_gpu(uint64_t memory_bytes);

}  // namespace dspack::runtime
