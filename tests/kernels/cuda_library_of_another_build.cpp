// A CUDA library that another version of the headers was compiled into: it must not touch what it is given.
#include "dspack_cuda_build.h"
#include "kernels/cuda/host/cuda_library.h"

uint64_t dspack_make_cuda_device(uint64_t interface_number, const dspack::kernels::CudaOptions* /*options*/,
                                 dspack::kernels::CudaOutcome* /*outcome*/) {
  return interface_number + 1;
}
