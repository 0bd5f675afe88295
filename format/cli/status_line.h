// A line about work that is under way, kept up to date by a clock: on a terminal it is redrawn several times a second,
// as wide as the terminal is then, and gone before anything else is printed (output.h); where there is no terminal that
// can redraw, a line a minute. What is over within two seconds shows nothing, and a quiet program (be_quiet) nothing at
// all.
// Threads: start and stop by one thread. Lifetime: what `text` refers to must outlive the line or its stop.
// Errors: none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "format/cli/output.h"

namespace dspack::format {

class StatusLine {
 public:
  /// Called by a thread of the line's own. Empty: there is nothing to say now.
  using Text = std::function<std::string()>;
  enum class WithoutTerminal { line_a_minute, nothing };
  struct Look {
    Shade shade = Shade::plain;
    WithoutTerminal without_terminal = WithoutTerminal::line_a_minute;
  };

  StatusLine() = default;
  ~StatusLine() { stop(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Stops what was shown before.
  void start(Text text, Look look);
  void start(Text text) { start(std::move(text), Look()); }
  /// Clears the line.
  void stop();
  /// Whether a further line may be printed about the same waiting: one a minute, those of the clock included where
  /// there is no terminal. By any thread.
  [[nodiscard]] bool may_say();

 private:
  using Clock = std::chrono::steady_clock;
  void tick(const Text& text, Look look, const std::stop_token& stop);

  Clock::time_point begun_{};  // the work, and those that it followed at once: together they are one wait
  Clock::time_point stopped_at_{};
  std::mutex mutex_;
  Clock::time_point said_{};  // guarded by mutex_: the last line that was printed
  std::condition_variable_any stopped_;
  std::jthread ticker_;  // of the work that is under way
};

}  // namespace dspack::format
