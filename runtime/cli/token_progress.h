// Progress through a known number of tokens, as a status line on stderr with rate and time left.
// Threads: single-thread; the line's own thread reads concurrently. Errors: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "format/cli/status_line.h"

namespace dspack::runtime {

/// "scoring: 1200 of 5000 tokens, 31.2 tokens/s, 122 s left, perplexity 3.211"
[[nodiscard]] std::string token_progress_line(std::string_view what, uint64_t done, uint64_t total, double seconds,
                                              std::string_view more);

class TokenProgress {
 public:
  TokenProgress(std::string_view what, uint64_t total);
  void show(uint64_t done, std::string_view more);
  /// Clears the line.
  void finish() { line_.stop(); }

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] std::string text();

  const std::string what_;
  const uint64_t total_;
  const Clock::time_point begin_;
  std::mutex mutex_;  // guards the next two
  uint64_t done_ = 0;
  std::string more_;
  format::StatusLine line_;  // last: calls text()
};

}  // namespace dspack::runtime
