// The command line of `reshard link`.
// Threads: the main thread. Lifetime: the flags must outlive the parsing.
#pragma once

#include <CLI/CLI.hpp>

#include "reshard/cli/commands.h"

namespace dspack::reshard {

[[nodiscard]] CLI::App* declare_link(CLI::App& app, LinkFlags& flags);

}  // namespace dspack::reshard
