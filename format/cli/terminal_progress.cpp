#include "format/cli/terminal_progress.h"

#include <fmt/format.h>

namespace dspack::format {

void TerminalProgress::follow(std::shared_ptr<const TransferCounters> transfers) {
  const std::lock_guard lock(mutex_);
  transfers_ = std::move(transfers);
}

void TerminalProgress::started(const Work& work) {
  finished();
  {
    const std::lock_guard lock(mutex_);
    meter_.start(work, ProgressMeter::Time::clock::now());
  }
  line_.start([this] { return text(); });
}

void TerminalProgress::advanced(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  meter_.advance(bytes, ProgressMeter::Time::clock::now());
}

void TerminalProgress::item_done() {
  const std::lock_guard lock(mutex_);
  meter_.item_done(ProgressMeter::Time::clock::now());
}

void TerminalProgress::reached(uint64_t items, std::string_view more) {
  const std::lock_guard lock(mutex_);
  meter_.reach(items, more, ProgressMeter::Time::clock::now());
}

void TerminalProgress::note(NoteKind kind, std::string_view text) {
  switch (kind) {
    case NoteKind::warning: return print_error(fmt::format("warning: {}", text));
    case NoteKind::pause:
      if (!is_quiet() && line_.may_say()) print_error(text);
      return;
    case NoteKind::remark:
      if (!is_quiet()) print_error(text);
      return;
  }
}

std::string TerminalProgress::text() {
  const auto now = ProgressMeter::Time::clock::now();
  const std::lock_guard lock(mutex_);
  return meter_.line(now, transfers_ ? transfers_->watch.wait(now) : std::nullopt);
}

}  // namespace dspack::format
