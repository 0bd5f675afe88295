// The progress of long work as one line: amounts, recent rate, time left, and, if nothing arrives, what it waits for.
// Events are recorded with their times and the line can be requested at any time, so that a clock drives the display,
// not arrivals.
// Threads: single-thread; the owner has the mutex.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/http/transfer_watch.h"
#include "format/progress.h"

namespace dspack::format {

/// The rate of a growing amount over the last seconds. Threads: single-thread.
class RecentRate {
 public:
  using Time = std::chrono::steady_clock::time_point;
  void start(uint64_t amount, Time now);
  /// Records that the amount has grown to `amount`.
  void reached(uint64_t amount, Time now);
  /// Amount per second.
  [[nodiscard]] double at(Time now) const;

 private:
  static constexpr size_t kSamples = 8;  // one a second
  struct Sample {
    Time time{};
    uint64_t amount = 0;
  };
  uint64_t amount_ = 0;
  std::array<Sample, kSamples> samples_{};
  size_t sampled_ = 0;  // number of samples taken; the last kSamples are kept
};

class ProgressMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Wait = std::optional<TransferWatch::Wait>;

  void start(const Work& work, Time now);
  void advance(uint64_t bytes, Time now);
  void item_done(Time now);
  /// For work in items alone, whose rate counts: `items` are done in all. `more` is shown at the end of the line.
  void reach(uint64_t items, std::string_view more, Time now);

  /// "packing: 20.4 GB of 688.6 GB, 12 of 163 files, 310.2 MB/s, 36 min 02 s left"; if nothing has arrived for some
  /// seconds "..., no byte for 12 s, retry 2 of 11 in 8 s" instead of rate and time left. `wait`: the state of
  /// transfers that the work may depend on.
  [[nodiscard]] std::string line(Time now, const Wait& wait = std::nullopt) const;

 private:
  std::string what_;
  std::string item_;
  std::string more_;
  uint64_t total_bytes_ = 0;
  uint64_t total_items_ = 0;
  uint64_t bytes_ = 0;
  uint64_t items_ = 0;
  Time begin_{};
  Time arrived_{};  // the last event
  bool has_rate_ = false;
  RecentRate rate_;  // its amount: bytes, or items
};

/// Shorter silences are normal and not reported.
inline constexpr double kSilenceSeconds = 3;

/// "no byte for 12 s, retry 2 of 11 in 8 s"; empty for a short silence.
[[nodiscard]] std::string silence_words(std::string_view what, double silence_seconds, const ProgressMeter::Wait& wait);

/// "12 s", "36 min 02 s", "3 h 05 min".
[[nodiscard]] std::string clock_words(double seconds);

/// The line cut to `columns` - 1 columns of a terminal; a cut line ends in dots.
[[nodiscard]] std::string clipped(std::string_view line, size_t columns);

}  // namespace dspack::format
