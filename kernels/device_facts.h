// What --version says of the devices that this build can compute on: instruction sets of the CPU, and the CUDA library.
// Threads: thread-safe. Errors: in the text.
#pragma once

#include <string>

namespace dspack::kernels {

/// Lines; nothing is loaded and no GPU is asked.
[[nodiscard]] std::string device_facts();

}  // namespace dspack::kernels
