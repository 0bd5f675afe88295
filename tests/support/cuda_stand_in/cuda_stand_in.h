// A machine with GPUs as CUDA's runtime shows it, for tests of kernels/cuda/hardware/cuda_runtime.cpp: devices without
// memory or work, a device for each thread, and the answer that a test wants of a call. Threads: a test changes the
// machine while no other thread calls. Errors: statuses, as CUDA's.
#pragma once

#include <map>
#include <string>

#include "tests/support/cuda_stand_in/cuda_runtime_api.h"

namespace dspack::test {

struct CudaMachine {
  int devices = 2;
  int driver = 13'000;                         // the CUDA version that it knows; 0: there is no driver
  std::map<std::string, cudaError_t> answers;  // of calls, by name; others succeed
  std::map<void*, size_t> registered = {};     // memory of the host, with its bytes
};
[[nodiscard]] CudaMachine& cuda_machine();

/// The calling thread's; each begins with 0.
[[nodiscard]] int& cuda_device_of_thread();

/// What a launch on the stream answers: the calling thread's device must be the stream's.
[[nodiscard]] cudaError_t launch_on_stand_in(void* stream);

}  // namespace dspack::test
