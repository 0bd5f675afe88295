// The key that clients of a server must send: from the command line, a file or the environment.
// Threads: main, before others start. Errors: those of reading the file; invalid (a key that is blank, or that no
// header can carry).
#pragma once

#include <optional>
#include <string>

#include "format/base/result.h"

namespace dspack::runtime {

/// Environment variable with the key, which keeps it off the command line.
inline constexpr char kApiKeyVariable[] = "DSPACK_API_KEY";

/// `option`: the value of --api-key, the key or @FILE; if absent, the variable is used. Empty: neither is set.
/// Surrounding blanks and line ends are stripped. A blank key is an error, since setting one asks for protection.
[[nodiscard]] Result<std::string> find_api_key(const std::optional<std::string>& option);

}  // namespace dspack::runtime
