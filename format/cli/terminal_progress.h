// Progress on a terminal: one line that is rewritten, with rate and time left. Where stderr is no terminal only notes
// are printed. Texts are shown as foreign_text.h has them: a name cannot steer the terminal.
// Threads: thread-safe.
#pragma once

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>

#include "format/progress.h"

namespace dspack::format {

class TerminalProgress final : public Progress {
 public:
  /// Writes to `stream`, which it borrows; redraws a line only if `is_terminal`.
  TerminalProgress(std::FILE* stream, bool is_terminal) : stream_(stream), is_terminal_(is_terminal) {}

  void started(std::string_view what, uint64_t total_bytes, uint64_t total_files) override;
  void advanced(uint64_t bytes) override;
  void file_done() override;
  void note(std::string_view text) override;
  void finished() override;

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);
  void clear_line();

  std::FILE* stream_;
  bool is_terminal_;
  std::mutex mutex_;  // guards everything below
  std::string what_;
  uint64_t total_bytes_ = 0;
  uint64_t total_files_ = 0;
  uint64_t bytes_ = 0;
  uint64_t files_ = 0;
  Clock::time_point begin_;
  Clock::time_point drawn_;
  bool line_open_ = false;
};

/// Whether a terminal that a person looks at shows what is written there.
[[nodiscard]] bool stderr_is_terminal();
[[nodiscard]] bool stdout_is_terminal();

/// "688.6 GB", "44.1 MB", "512 B": decimal units, as disks and the Hub count.
[[nodiscard]] std::string human_bytes(uint64_t bytes);

/// The progress line, without colours or control codes.
struct ProgressState {
  std::string_view what;
  uint64_t bytes, total_bytes, files, total_files;
  double seconds;
};
[[nodiscard]] std::string progress_line(const ProgressState& state);

}  // namespace dspack::format
