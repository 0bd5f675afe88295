#include "format/http/pace.h"

#include <algorithm>
#include <condition_variable>

namespace dspack::format {
namespace {

// An eighth of a modem's rate in 1998; the largest tokenizers (20 MB) take six hours.
constexpr double kLeastBytesPerSecond = 1024;

}  // namespace

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

double RateLimit::book(uint64_t bytes, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> cost(static_cast<double>(bytes) / rate_);
  free_at_ = std::max(free_at_, now) + std::chrono::duration_cast<Clock::duration>(cost);
  return std::chrono::duration<double>(free_at_ - now).count();
}

bool RateLimit::pass(uint64_t bytes, const std::stop_token& stop) {
  return wait_for(book(bytes, Clock::now()), stop);
}

bool AnswerPace::keeps_up(uint64_t bytes, Clock::time_point now) {
  if (bytes_ == 0) begin_ = now;
  bytes_ += bytes;
  return seconds(now) <= grace_seconds_ + static_cast<double>(bytes_) / kLeastBytesPerSecond;
}

}  // namespace dspack::format
