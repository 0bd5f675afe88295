// The flags that say what becomes of experts which a GPU's memory does not hold.
// Threads: call from the main thread. Errors: a value that is none becomes CLI11's ParseError.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/generate/device_choice.h"

namespace dspack::runtime {

/// --vram-experts, --miss and --deterministic. `device` must live until the command line was parsed.
void add_tier_options(CLI::App& app, DeviceOptions& device);
/// Flags that contradict each other, to be called when all were parsed. Empty: none do.
[[nodiscard]] std::string tier_contradiction_of(const DeviceOptions& device);

}  // namespace dspack::runtime
