#include "format/source/rate_limit.h"

#include <algorithm>

#include "format/source/backoff.h"

namespace dspack::format {

double RateLimit::book(uint64_t bytes, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> cost(static_cast<double>(bytes) / rate_);
  free_at_ = std::max(free_at_, now) + std::chrono::duration_cast<Clock::duration>(cost);
  return std::chrono::duration<double>(free_at_ - now).count();
}

bool RateLimit::pass(uint64_t bytes, const std::stop_token& stop) {
  return wait_for(book(bytes, Clock::now()), stop);
}

}  // namespace dspack::format
