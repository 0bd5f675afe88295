// One handler for CUDA statuses that are fatal to the device. Threads: thread-safe. Errors: recorded (runtime.h,
// failure).
#pragma once

#include <cuda_runtime_api.h>

namespace dspack::gpu {

/// Records a failure with the status, its text and the place of the call.
void check(cudaError_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace dspack::gpu
