// The flags that choose what a model runs on.
// Threads: call from the main thread. Errors: a value that is none becomes CLI11's ParseError.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/generate/device_choice.h"

namespace dspack::runtime {

/// --device, --vram, --precision and --cuda-library; where nothing is said, the best there is. `device` must live until
/// the command line was parsed.
void add_device_options(CLI::App& app, DeviceOptions& device);
/// Flags that contradict each other, to be called when all were parsed. Empty: none do.
[[nodiscard]] std::string contradiction_of(const DeviceOptions& device);

}  // namespace dspack::runtime
