// Makes a CUDA device from a library that is loaded at run time, so that only the library needs CUDA, both to build and
// to run.
// Threads: thread-safe. Lifetime: the library stays loaded until the process ends. Errors, each one line with the exact
// reason: not_found (no library, no driver or no such GPU), unsupported (a library that does not load, is none of
// dspack, or of another build; a GPU that is too old), budget.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/cuda_library.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// `library`: its path; empty: beside the running program, where a build tree has it, or where an installation has it.
[[nodiscard]] Result<std::unique_ptr<Device>> load_cuda_device(const std::string& library, const CudaOptions& options);

/// Whether this system has an NVIDIA driver, of Linux or of Windows below it (WSL). Without one nobody expects a GPU to
/// be used. `root`: of the file system, but for tests.
[[nodiscard]] bool has_nvidia_driver(const std::string& root = "/");

/// A line: where the library lies and which GPUs it is for, or why there is none. It is not loaded.
[[nodiscard]] std::string cuda_library_fact();

}  // namespace dspack::kernels
