#include "runtime/cli/token_progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "format/base/foreign_text.h"
#include "format/cli/output.h"

namespace dspack::runtime {

namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);

}  // namespace

std::string token_progress_line(std::string_view what, uint64_t done, uint64_t total, double seconds,
                                std::string_view more) {
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string line = fmt::format("{}: {} of {} tokens, {:.1f} tokens/s", what, done, total, rate);
  if (rate > 0 && done < total) line += fmt::format(", {:.0f} s left", static_cast<double>(total - done) / rate);
  return more.empty() ? line : fmt::format("{}, {}", line, more);
}

TokenProgress::TokenProgress(std::string_view what, uint64_t total)
    : what_(what), total_(total), to_terminal_(format::stderr_is_terminal()), begin_(Clock::now()), drawn_(begin_) {}

void TokenProgress::show(uint64_t done, std::string_view more) {
  const auto now = Clock::now();
  if (!to_terminal_ || now - drawn_ < kRedraw) return;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  fmt::print(stderr, "\r\033[K{}", message_line(token_progress_line(what_, done, total_, seconds, more)));
  (void)std::fflush(stderr);
  drawn_ = now;
  line_open_ = true;
}

void TokenProgress::finish() {
  if (line_open_) fmt::print(stderr, "\r\033[K");
  line_open_ = false;
}

}  // namespace dspack::runtime
