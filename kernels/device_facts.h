// The lines of --version about devices that this build can compute on: instruction sets of the CPU, and the CUDA
// library.
// Threads: thread-safe. Errors: in the text.
#pragma once

#include <string>

namespace dspack::kernels {

/// One fact per line. Loads nothing and queries no GPU.
[[nodiscard]] std::string device_facts();

}  // namespace dspack::kernels
