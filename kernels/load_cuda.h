// Makes a CUDA device out of a library that is loaded while the program runs, so that nothing but the library needs
// CUDA: neither for building nor for running.
// Threads: thread-safe. Lifetime: the library stays loaded until the process ends. Errors, each in one line that says
// exactly why: not_found (no library, no driver or no such GPU), unsupported (a library that does not load, is none of
// dspack, or of another build; a GPU that is too old), budget.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/cuda_options.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// `library`: its path; empty: beside the running program, where a build tree has it, or where an installation has it.
[[nodiscard]] Result<std::unique_ptr<Device>> load_cuda_device(const std::string& library, const CudaOptions& options);

}  // namespace dspack::kernels
