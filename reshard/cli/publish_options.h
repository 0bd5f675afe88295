// The command line of `reshard publish`.
// Threads: the main thread. Lifetime: the flags must outlive the parsing.
#pragma once

#include <CLI/CLI.hpp>

#include "reshard/cli/commands.h"
#include "reshard/cli/network_options.h"

namespace dspack::reshard {

[[nodiscard]] CLI::App* declare_publish(CLI::App& app, PublishFlags& flags, NetworkFlags& network);

}  // namespace dspack::reshard
