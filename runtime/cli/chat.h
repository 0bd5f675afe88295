// dsrun DIR: a chat in the terminal.
// Threads: call from the main thread, before others start. Errors: those of loading; those of an answer if standard
// input is no terminal.
#pragma once

#include "runtime/cli/verbs.h"

namespace dspack::runtime {

/// Returns the exit status. Handles Ctrl-C itself, from loading on.
[[nodiscard]] Result<int> run_chat(const RunOptions& options);

}  // namespace dspack::runtime
