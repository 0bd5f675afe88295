// The least rate of what is no weights (listings, small files, refusals): a server that sends a byte now and then is
// never silent, and would hold a run for ever.
// Threads: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>

namespace dspack::format {

class AnswerPace {
 public:
  using Clock = std::chrono::steady_clock;

  /// `silence_seconds`: after which a connection counts as lost anyway.
  explicit AnswerPace(double silence_seconds) : grace_seconds_(2 * silence_seconds) {}

  /// Bytes of a body have come. false: too few for the time since the first of them.
  [[nodiscard]] bool keeps_up(uint64_t bytes, Clock::time_point now) {
    if (bytes_ == 0) begin_ = now;
    bytes_ += bytes;
    return seconds(now) <= grace_seconds_ + static_cast<double>(bytes_) / kLeastBytesPerSecond;
  }
  /// We did not read meanwhile: that time does not count.
  void paused(Clock::duration pause) { begin_ += pause; }

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] double seconds(Clock::time_point now) const {
    return std::chrono::duration<double>(now - begin_).count();
  }

 private:
  // An eighth of what a modem had in 1998; the largest tokenizers (20 MB) come in six hours.
  static constexpr double kLeastBytesPerSecond = 1024;

  double grace_seconds_;
  uint64_t bytes_ = 0;
  Clock::time_point begin_{};
};

/// For a message: why the transfer was given up.
inline constexpr char kTooSlowly[] = "its answer comes too slowly ({} bytes in {:.0f} s); try again later";

}  // namespace dspack::format
