// The flags that say how local weights are read.
// Threads: plain values. Errors: a value that is none becomes CLI11's ParseError.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// --io and --verify. `load` must live until the command line was parsed.
void add_io_options(CLI::App& app, LoadOptions& load);

}  // namespace dspack::runtime
