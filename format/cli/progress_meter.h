// How far a long work is, as one line: amounts, the rate of the last seconds, the time left, and for how long nothing
// has come. Told of events with their times and asked at any time, so that a clock drives what is shown, not arrivals.
// Threads: single-thread; the owner has the mutex.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace dspack::format {

class ProgressMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `total_bytes` 0: the work is counted in files; both 0: it has no known size.
  void start(std::string_view what, uint64_t total_bytes, uint64_t total_files, Time now);
  void advance(uint64_t bytes, Time now);
  void file_done(Time now);

  /// "packing: 20.4 GB of 688.6 GB, 12 of 163 files, 310.2 MB/s, 36 min 02 s left"; where nothing has come for some
  /// seconds "..., no byte for 12 s" in place of rate and time left.
  [[nodiscard]] std::string line(Time now) const;
  [[nodiscard]] double seconds(Time now) const { return std::chrono::duration<double>(now - begin_).count(); }

 private:
  static constexpr size_t kSamples = 8;  // one a second
  struct Sample {
    Time time{};
    uint64_t bytes = 0;
  };
  [[nodiscard]] double recent_rate(Time now) const;

  std::string what_;
  uint64_t total_bytes_ = 0;
  uint64_t total_files_ = 0;
  uint64_t bytes_ = 0;
  uint64_t files_ = 0;
  Time begin_{};
  Time arrived_{};  // the last event
  std::array<Sample, kSamples> samples_{};
  size_t sampled_ = 0;  // how many there were; the last kSamples are kept
};

/// So much of a line as `columns` of a terminal hold, its last one apart: what is cut ends in dots.
[[nodiscard]] std::string clipped(std::string_view line, size_t columns);

}  // namespace dspack::format
