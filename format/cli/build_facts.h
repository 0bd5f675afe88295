// What --version says of the source and the compiler that the program was made of.
// Threads: pure. Errors: none.
#pragma once

#include <string>

namespace dspack::format {

/// A line each: the commit, where CMake found a repository, and the compiler.
[[nodiscard]] std::string source_and_compiler();

}  // namespace dspack::format
