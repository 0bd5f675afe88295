#include "tests/gpu/real_gpu.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "dspack_cuda_build.h"

namespace dspack::test {

std::unique_ptr<kernels::Device> real_gpu(const kernels::CudaOptions& options) {
  const char* given = std::getenv("DSPACK_TEST_CUDA_LIBRARY");
  if (given == nullptr && kCudaAbsence[0] != '\0') {
    MESSAGE("SKIPPED: nothing was tried on a GPU: this build has no CUDA library: " << kCudaAbsence);
    return nullptr;
  }
  auto device = kernels::load_cuda_device(given != nullptr ? given : DSPACK_BUILT_CUDA_LIBRARY, options);
  if (device) return std::move(*device);
  const bool may_skip =
      given == nullptr && device.error().kind == ErrorKind::not_found && !std::filesystem::exists("/dev/nvidiactl");
  REQUIRE_MESSAGE(may_skip, device.error().message);
  MESSAGE("SKIPPED: nothing was tried on a GPU: " << device.error().message);
  return nullptr;
}

}  // namespace dspack::test
