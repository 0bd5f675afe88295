// The GPU that tests of the label "gpu" run on. Threads: one thread a test case. Lifetime: the caller owns the device.
// Errors: fail the test case, unless this machine has no GPU.
#pragma once

#include <memory>

#include "kernels/load_cuda.h"

namespace dspack::test {

/// A device of the library that DSPACK_TEST_CUDA_LIBRARY names, which must work; else of this build's library. Null:
/// this build has none, or this machine has no GPU, and "SKIPPED: " was printed with the reason.
[[nodiscard]] std::unique_ptr<kernels::Device> real_gpu(const kernels::CudaOptions& options = {});

}  // namespace dspack::test
