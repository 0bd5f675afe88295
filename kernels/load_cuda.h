// Makes a CUDA device from a library loaded at run time, so that only the library needs CUDA, both to build and to run.
// Threads: thread-safe. Lifetime: the library stays loaded until the process ends. Errors, each one line with the exact
// reason: not_found (no library, no driver or no such GPU), unsupported (the library does not load, is not one of
// dspack, or is from another build; the GPU is too old), budget.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/host/cuda_library.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// `library`: its path; if empty, the library is searched for beside the running program, in the build tree, and in the
/// installation.
[[nodiscard]] Result<std::unique_ptr<Device>> load_cuda_device(const std::string& library, const CudaOptions& options);

/// Whether this system has an NVIDIA driver, of Linux or of Windows below it (WSL). If not, users do not expect a GPU
/// to be used. `root`: root of the file system, for tests.
[[nodiscard]] bool has_nvidia_driver(const std::string& root = "/");

/// One line: the library's path and the GPUs that it is for, or why there is none. Does not load it.
[[nodiscard]] std::string cuda_library_fact();

}  // namespace dspack::kernels
