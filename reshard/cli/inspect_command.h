// The command line of `reshard inspect`.
// Threads: the main thread. Lifetime: the flags must outlive the parsing.
#pragma once

#include <CLI/CLI.hpp>

#include "reshard/cli/commands.h"
#include "reshard/cli/network_options.h"

namespace dspack::reshard {

[[nodiscard]] CLI::App* declare_inspect(CLI::App& app, InspectFlags& flags, NetworkFlags& network);

}  // namespace dspack::reshard
