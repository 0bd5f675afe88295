// The key that clients of a server must send: from the command line, a file or the environment.
// Threads: main, before others start. Errors: those of reading the file; invalid (a key that is blank, or that no
// header can carry).
#pragma once

#include <optional>
#include <string>

#include "format/base/result.h"

namespace dspack::runtime {

/// The variable that has it, for whoever would rather not write it on a command line.
inline constexpr char kApiKeyVariable[] = "DSPACK_API_KEY";

/// `option`: what --api-key says, the key or @FILE; without it the variable counts, if it is set. Empty: none of the
/// two. Blanks and line ends around it are no part of it. One that is blank is an error: whoever sets one wants to be
/// protected.
[[nodiscard]] Result<std::string> find_api_key(const std::optional<std::string>& option);

}  // namespace dspack::runtime
