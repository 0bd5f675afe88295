// The command lines of the verbs that prove where bytes come from: verify, unpack, diff.
// Threads: the main thread. Lifetime: the flags must outlive the parsing.
#pragma once

#include <CLI/CLI.hpp>

#include "reshard/cli/commands.h"
#include "reshard/cli/network_options.h"

namespace dspack::reshard {

[[nodiscard]] CLI::App* declare_verify(CLI::App& app, VerifyFlags& flags, NetworkFlags& network);
[[nodiscard]] CLI::App* declare_repair(CLI::App& app, RepairFlags& flags, NetworkFlags& network);
[[nodiscard]] CLI::App* declare_unpack(CLI::App& app, UnpackFlags& flags, NetworkFlags& network);
[[nodiscard]] CLI::App* declare_seal(CLI::App& app, SealFlags& flags, NetworkFlags& network);
[[nodiscard]] CLI::App* declare_diff(CLI::App& app, DiffFlags& flags, NetworkFlags& network);

}  // namespace dspack::reshard
