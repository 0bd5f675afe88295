// dsrun DIR: a chat in the terminal.
// Threads: call from the main thread, before others start. Errors: those of loading; of an answer, where no person
// could react to them.
#pragma once

#include "runtime/cli/verbs.h"

namespace dspack::runtime {

/// The exit status. Handles Ctrl-C itself, from loading on.
[[nodiscard]] Result<int> run_chat(const RunOptions& options);

}  // namespace dspack::runtime
