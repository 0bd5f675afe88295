// Time and rates of requests: pauses before retries, a limit on bytes per second, and the minimum rate of an answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <stop_token>

namespace dspack::format {

/// Seconds to wait before attempt `attempt` (1 is the first repetition): 0.5 s doubling to a minute, plus up to a
/// quarter of jitter from `random` in [0, 1), so that many clients do not return in step.
[[nodiscard]] double backoff_seconds(unsigned attempt, double random);

/// Waits, or returns early with false when a stop is requested. Thread-safe.
[[nodiscard]] bool wait_for(double seconds, const std::stop_token& stop);

/// A bound on the bytes per second of all connections together (`--limit-rate`). Thread-safe.
class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  /// Precondition: bytes_per_second > 0.
  explicit RateLimit(uint64_t bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  [[nodiscard]] uint64_t bytes_per_second() const { return static_cast<uint64_t>(rate_); }

  /// Waits until the rate allows `bytes`, after those booked before; false if a stop is requested meanwhile.
  [[nodiscard]] bool pass(uint64_t bytes, const std::stop_token& stop);

  /// The arithmetic of `pass`: seconds to wait for `bytes` that arrive at `now`. Unused time is not saved up.
  [[nodiscard]] double book(uint64_t bytes, Clock::time_point now);

 private:
  double rate_;
  std::mutex mutex_;
  Clock::time_point free_at_{};  // when all booked bytes have passed; guarded by mutex_
};

/// The minimum rate of answers other than weights (listings, small files, refusals): a server that sends a byte now and
/// then never counts as silent, and could hold a run forever. One thread at a time.
class AnswerPace {
 public:
  using Clock = std::chrono::steady_clock;

  /// `silence_seconds`: silence after which a connection counts as lost anyway.
  explicit AnswerPace(double silence_seconds) : grace_seconds_(2 * silence_seconds) {}

  /// Adds bytes of a body. false: too few for the time since the first of them.
  [[nodiscard]] bool keeps_up(uint64_t bytes, Clock::time_point now);
  /// Excludes time in which we did not read.
  void paused(Clock::duration pause) { begin_ += pause; }

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] double seconds(Clock::time_point now) const {
    return std::chrono::duration<double>(now - begin_).count();
  }

 private:
  double grace_seconds_;
  uint64_t bytes_ = 0;
  Clock::time_point begin_{};
};

}  // namespace dspack::format
