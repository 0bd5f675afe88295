// The lines of --version about the source and the compiler of this build.
// Threads: pure. Errors: none.
#pragma once

#include <string>

namespace dspack::format {

/// Two lines: the commit, if CMake found a repository, and the compiler.
[[nodiscard]] std::string source_and_compiler();

}  // namespace dspack::format
