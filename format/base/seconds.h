// Seconds of wall-clock time, for rates and statistics.
// Threads: any. Errors: none.
#pragma once

#include <chrono>

namespace dspack {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace dspack
