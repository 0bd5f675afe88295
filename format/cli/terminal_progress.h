// Shows the progress of long work, and what it waits for, as a status line on stderr.
// Threads: thread-safe. Errors: none.
#pragma once

#include <memory>
#include <mutex>

#include "format/cli/progress_meter.h"
#include "format/cli/status_line.h"
#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::format {

class TerminalProgress final : public Progress {
 public:
  using Progress::note;
  using Progress::started;
  TerminalProgress() = default;
  ~TerminalProgress() override { finished(); }
  TerminalProgress(const TerminalProgress&) = delete;
  TerminalProgress& operator=(const TerminalProgress&) = delete;

  /// From now on, if nothing arrives, the line shows what these transfers wait for.
  void follow(std::shared_ptr<const TransferCounters> transfers);

  void started(const Work& work) override;
  void advanced(uint64_t bytes) override;
  void item_done() override;
  /// As ProgressMeter::reach.
  void reached(uint64_t items, std::string_view more);
  /// Warnings are printed even if the program is quiet; of pauses at most one a minute.
  void note(NoteKind kind, std::string_view text) override;
  void finished() override { line_.stop(); }

 private:
  [[nodiscard]] std::string text();

  std::mutex mutex_;  // guards the next two members
  ProgressMeter meter_;
  std::shared_ptr<const TransferCounters> transfers_;
  StatusLine line_;  // last, so destroyed first: its thread calls text()
};

}  // namespace dspack::format
