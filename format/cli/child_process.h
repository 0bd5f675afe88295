// Runs another program and waits for it.
// Threads: call from the main thread, which must outlive the child: a child whose parent thread ends gets SIGTERM, so
// that killing this program leaves nothing running. Errors: io (the program cannot be started), cancelled.
#pragma once

#include <span>
#include <stop_token>
#include <string>

#include "format/base/result.h"

namespace dspack::format {

/// Whether PATH has an executable of this name.
[[nodiscard]] bool has_program(const std::string& name);

/// Runs `command` (the program's name, found in PATH, then its arguments) with this process's environment and stderr;
/// its stdout goes to stderr too. A stop request interrupts it (SIGINT) and waits for its end. Returns its exit status;
/// of a child that a signal ended, 128 and the signal's number.
[[nodiscard]] Result<int> run_child(std::span<const std::string> command, const std::stop_token& stop);

}  // namespace dspack::format
