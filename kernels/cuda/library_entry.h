// The one function that libdspack_cuda.so exports, for a program that loads it while it runs (load_cuda.h). Library and
// program share C++ types, so both must be of one build; a number that CMake makes from the headers of these types and
// the compiler (dspack_cuda_build.h) tells.
// Threads: thread-safe. Lifetime: the library must stay loaded as long as what it made. Errors: in the outcome.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/cuda/cuda_options.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// Empty until the entry has filled it.
using CudaOutcome = std::optional<Result<std::unique_ptr<Device>>>;
using CudaEntry = uint64_t (*)(uint64_t interface_number, const CudaOptions* options, CudaOutcome* outcome);
inline constexpr char kCudaEntryName[] = "dspack_make_cuda_device";

}  // namespace dspack::kernels

/// Returns the library's own interface number. Where it differs from the caller's, nothing else was read or written.
extern "C" __attribute__((visibility("default"))) uint64_t dspack_make_cuda_device(
    uint64_t interface_number, const dspack::kernels::CudaOptions* options, dspack::kernels::CudaOutcome* outcome);
