// A bound on the bytes per second of all connections together (`--limit-rate`).
// Threads: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <stop_token>

namespace dspack::format {

class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  /// Precondition: bytes_per_second > 0.
  explicit RateLimit(uint64_t bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  [[nodiscard]] uint64_t bytes_per_second() const { return static_cast<uint64_t>(rate_); }

  /// Waits for `bytes` to have their turn, behind those that came before; false if a stop is requested meanwhile.
  [[nodiscard]] bool pass(uint64_t bytes, const std::stop_token& stop);

  /// The arithmetic of it: seconds that `bytes` must wait if they come at `now`. Unused time is not saved up.
  [[nodiscard]] double book(uint64_t bytes, Clock::time_point now);

 private:
  double rate_;
  std::mutex mutex_;
  Clock::time_point free_at_{};  // guarded by mutex_; when all that was booked has passed
};

}  // namespace dspack::format
