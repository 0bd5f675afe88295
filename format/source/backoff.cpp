#include "format/source/backoff.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace dspack::format {

double backoff_seconds(unsigned attempt, double random) {
  constexpr double kLongest = 60;
  constexpr unsigned kDoublings = 8;  // enough to reach it
  const double base = std::min(kLongest, 0.25 * static_cast<double>(1U << std::min(attempt, kDoublings)));
  return base * (1.0 + 0.25 * random);
}

bool wait_for(double seconds, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
  return !stop.stop_requested();
}

}  // namespace dspack::format
