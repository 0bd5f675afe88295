// The flags that bound memory.
// Threads: call from the main thread. Errors: a value that is none becomes CLI11's ParseError.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/budget/memory_options.h"

namespace dspack::runtime {

/// An option whose text `parser` makes an Amount of.
CLI::Option* add_amount(CLI::App& app, const std::string& name, Result<Amount> (*parser)(std::string_view),
                        std::optional<Amount>& into, const std::string& about);
/// --ram, --experts and --kv-dtype. `memory` must live until the command line was parsed.
void add_memory_options(CLI::App& app, MemoryOptions& memory);

}  // namespace dspack::runtime
