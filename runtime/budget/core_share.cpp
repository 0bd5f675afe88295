#include "runtime/budget/core_share.h"

#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

namespace dspack::runtime {
namespace {

/// Nanoseconds on a core, and on a run queue: the first two numbers of schedstat (Linux, sched-stats).
std::pair<uint64_t, uint64_t> times_of_threads() {
  std::pair<uint64_t, uint64_t> sums;
  std::error_code none;
  std::filesystem::directory_iterator threads("/proc/self/task", none);
  for (; !none && threads != std::filesystem::directory_iterator(); threads.increment(none)) {
    std::ifstream file(threads->path() / "schedstat");
    uint64_t running = 0, waiting = 0;
    if (!(file >> running >> waiting)) continue;  // the thread has just ended
    sums.first += running;
    sums.second += waiting;
  }
  return sums;
}

}  // namespace

CoreShare::CoreShare() {
  std::tie(running_ns_, waiting_ns_) = times_of_threads();
}

std::optional<double> CoreShare::so_far() const {
  const auto [running, waiting] = times_of_threads();
  if (running <= running_ns_ || waiting < waiting_ns_) return std::nullopt;
  const auto got = static_cast<double>(running - running_ns_);
  return got / (got + static_cast<double>(waiting - waiting_ns_));
}

}  // namespace dspack::runtime
