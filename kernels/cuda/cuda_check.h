// One handler for CUDA statuses that leave nothing to go on with. Threads: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace dspack::gpu {

/// A programming error or a lost device ends the process with the status, its text and the place of the call.
void check(cudaError_t status, std::source_location at = std::source_location::current());

}  // namespace dspack::gpu
