// A CUDA library of this build on a machine without a GPU, as far as a program can tell.
#include "dspack_cuda_build.h"
#include "kernels/cuda/host/cuda_library.h"

uint64_t dspack_make_cuda_device(uint64_t interface_number, const dspack::kernels::CudaOptions* options,
                                 dspack::kernels::CudaOutcome* outcome) {
  if (interface_number == dspack::kKernelsInterface) {
    outcome->emplace(dspack::Error{dspack::ErrorKind::not_found, "no GPU " + std::to_string(options->index)});
  }
  return dspack::kKernelsInterface;
}
