// What libdspack_cuda.so is to a program that loads it while it runs (load_cuda.h): the options of a CUDA device, and
// the one function that the library exports. Free of CUDA's headers. Library and program share C++ types, so both must
// be of one build; a number that CMake makes from the headers of these types and the compiler (dspack_cuda_build.h)
// tells. Threads: thread-safe. Lifetime: the library must stay loaded as long as what it made. Errors: in the outcome.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels {

/// What a CUDA device is made with.
struct CudaOptions {
  unsigned index = 0;  // of the GPUs that the driver shows
  Precision precision = Precision::exact;
  uint64_t vram_bytes = 0;  // that the device's buffers may take together; 0: no limit but the card's
  // libcublasLt, for products of many rows in precisions bf16 and fp8. Empty: where the system's loader finds it;
  // kNoCublasLt: none.
  std::string cublaslt = {};
};
inline constexpr char kNoCublasLt[] = "off";

/// Empty until the entry has filled it.
using CudaOutcome = std::optional<Result<std::unique_ptr<Device>>>;
using CudaEntry = uint64_t (*)(uint64_t interface_number, const CudaOptions* options, CudaOutcome* outcome);
inline constexpr char kCudaEntryName[] = "dspack_make_cuda_device";

}  // namespace dspack::kernels

/// Returns the library's own interface number. Where it differs from the caller's, nothing else was read or written.
extern "C" __attribute__((visibility("default"))) uint64_t dspack_make_cuda_device(
    uint64_t interface_number, const dspack::kernels::CudaOptions* options, dspack::kernels::CudaOutcome* outcome);
