#include "runtime/cli/token_progress.h"

#include <fmt/format.h>

namespace dspack::runtime {

std::string token_progress_line(std::string_view what, uint64_t done, uint64_t total, double seconds,
                                std::string_view more) {
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string line = fmt::format("{}: {} of {} tokens, {:.1f} tokens/s", what, done, total, rate);
  if (rate > 0 && done < total) line += fmt::format(", {:.0f} s left", static_cast<double>(total - done) / rate);
  return more.empty() ? line : fmt::format("{}, {}", line, more);
}

TokenProgress::TokenProgress(std::string_view what, uint64_t total) : what_(what), total_(total), begin_(Clock::now()) {
  line_.start([this] { return text(); });
}

void TokenProgress::show(uint64_t done, std::string_view more) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  more_ = more;
}

std::string TokenProgress::text() {
  const std::lock_guard lock(mutex_);
  return token_progress_line(what_, done_, total_, std::chrono::duration<double>(Clock::now() - begin_).count(), more_);
}

}  // namespace dspack::runtime
