#include "format/cli/status_line.h"

namespace dspack::format {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(250);
constexpr auto kQuietStart = std::chrono::seconds(2);  // shorter work needs no line
constexpr auto kAtOnce = std::chrono::milliseconds(500);
constexpr auto kBetweenLines = std::chrono::seconds(60);

}  // namespace

void StatusLine::start(Text text, Look look) {
  stop();
  if (const auto now = Clock::now(); now - stopped_at_ > kAtOnce) begun_ = now;
  if (is_quiet()) return;
  if (look.without_terminal == WithoutTerminal::nothing && !can_redraw()) return;
  ticker_ =
      std::jthread([this, text = std::move(text), look](const std::stop_token& stopped) { tick(text, look, stopped); });
}

void StatusLine::stop() {
  if (!ticker_.joinable()) return;
  ticker_ = {};  // requests stop and joins
  stopped_at_ = Clock::now();
  clear_status();
}

bool StatusLine::may_say() {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (said_ != Clock::time_point() && now - said_ < kBetweenLines) return false;
  said_ = now;
  return true;
}

void StatusLine::tick(const Text& text, Look look, const std::stop_token& stop) {
  const bool is_live = can_redraw();
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, stop, kRedraw, [&] { return stop.stop_requested(); })) {
    const auto now = Clock::now();
    if (is_live && now - begun_ >= kQuietStart) {
      lock.unlock();
      draw_status(text(), look.shade);
      lock.lock();
    } else if (!is_live && now - begun_ >= kBetweenLines && now - said_ >= kBetweenLines) {
      said_ = now;
      lock.unlock();
      if (const std::string line = text(); !line.empty()) print_error(line);
      lock.lock();
    }
  }
}

}  // namespace dspack::format
