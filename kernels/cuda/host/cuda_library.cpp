#include "kernels/cuda/host/cuda_library.h"

#include "dspack_cuda_build.h"
#include "kernels/cuda/host/cuda_device.h"

uint64_t dspack_make_cuda_device(uint64_t interface_number, const dspack::kernels::CudaOptions* options,
                                 dspack::kernels::CudaOutcome* outcome) {
  if (interface_number == dspack::kKernelsInterface) outcome->emplace(dspack::kernels::make_cuda_device(*options));
  return dspack::kKernelsInterface;
}
