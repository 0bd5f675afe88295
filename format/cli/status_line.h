// A status line about running work, driven by a clock. A terminal redraws it several times a second, clipped to its
// current width, and it is erased before anything else is printed (output.h); without a terminal that can redraw, it is
// printed once a minute. Work that ends within two seconds shows nothing, nor does a quiet program (be_quiet).
// Threads: start and stop from one thread. Lifetime: what `text` refers to must live until stop or destruction. Errors:
// none.
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
  /// Called by the status line's own thread. Empty: nothing to show now.
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

  /// Stops the previous line first.
  void start(Text text, Look look);
  void start(Text text) { start(std::move(text), Look()); }
  /// Clears the line.
  void stop();
  /// Whether another line about the same wait may be printed: at most one a minute, including the clock's own lines if
  /// there is no terminal. Callable from any thread.
  [[nodiscard]] bool may_say();

 private:
  using Clock = std::chrono::steady_clock;
  void tick(const Text& text, Look look, const std::stop_token& stop);

  Clock::time_point begun_{};  // start of the work, or of the first of several that followed each other at once: they
                               // count as one wait
  Clock::time_point stopped_at_{};
  std::mutex mutex_;
  Clock::time_point said_{};  // when the last line was printed; guarded by mutex_
  std::condition_variable_any stopped_;
  std::jthread ticker_;  // runs while work is shown
};

}  // namespace dspack::format
