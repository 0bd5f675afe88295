// One handler for CUDA statuses that leave nothing to go on with. Threads: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

namespace dspack::gpu {

/// A programming error or a lost device ends the process with the status, its text and the place of the call.
void check(cudaError_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace dspack::gpu
