// Wall-clock time in seconds, for rates and statistics, and as text for people.
// Threads: any. Errors: none.
#pragma once

#include <chrono>
#include <string>

namespace dspack {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A duration for people: "0.3 s", "42.0 s", "2 min 03 s", "5 h 07 min", "3 days 4 h".
[[nodiscard]] std::string duration_words(double seconds);

}  // namespace dspack
