// The interface of libdspack_cuda.so to a program that loads it at run time (load_cuda.h): the options of a CUDA
// device, and the one function that the library exports. Free of CUDA's headers. Library and program share C++ types,
// so both must be from the same build; a number that CMake computes from the compiler and the headers of these types
// (dspack_cuda_build.h) verifies it. Threads: thread-safe. Lifetime: the library must stay loaded as long as objects
// that it made. Errors: in the outcome.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels {

/// Options of a CUDA device.
struct CudaOptions {
  unsigned index = 0;  // GPU number, as the driver lists them
  Precision precision = Precision::exact;
  uint64_t vram_bytes = 0;  // limit on the device's buffers in total; 0: limited only by the card
  // libcublasLt, for products of many rows in precisions bf16 and fp8. Empty: as the system's loader finds it;
  // kNoCublasLt: none.
  std::string cublaslt = {};
};
inline constexpr char kNoCublasLt[] = "off";

/// Empty until the entry function sets it.
using CudaOutcome = std::optional<Result<std::unique_ptr<Device>>>;
using CudaEntry = uint64_t (*)(uint64_t interface_number, const CudaOptions* options, CudaOutcome* outcome);
inline constexpr char kCudaEntryName[] = "dspack_make_cuda_device";

}  // namespace dspack::kernels

/// Returns the library's own interface number. If it differs from the caller's, nothing else was read or written.
extern "C" __attribute__((visibility("default"))) uint64_t dspack_make_cuda_device(
    uint64_t interface_number, const dspack::kernels::CudaOptions* options, dspack::kernels::CudaOutcome* outcome);
