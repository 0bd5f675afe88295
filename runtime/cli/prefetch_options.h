// The flag that steers prefetching of experts.
// Threads: plain values. Errors: a value that is none becomes CLI11's ParseError.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/experts/prefetch_governor.h"

namespace dspack::runtime {

/// `mode` must live until the command line was parsed.
void add_prefetch_option(CLI::App& app, PrefetchMode& mode);

}  // namespace dspack::runtime
