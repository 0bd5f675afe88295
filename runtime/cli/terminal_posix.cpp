#include "runtime/cli/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>

#include "format/cli/output.h"

namespace dspack::runtime {

namespace {

constexpr std::string_view kPasteModeOn = "\x1b[?2004h";
constexpr std::string_view kPasteModeOff = "\x1b[?2004l";

sigset_t watched_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGWINCH);
  return set;
}

void show(std::string_view text) {
  fmt::print("{}", text);
  (void)std::fflush(stdout);
}

constexpr char kInterrupted = 'i', kResized = 'r';  // bytes in the pipe

/// Waits for standard input (returns 0), or for a byte in the pipe, which it returns.
char wait_for_input(int pipe) {
  for (;;) {
    std::array<pollfd, 2> waiting{pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                                  pollfd{.fd = pipe, .events = POLLIN, .revents = 0}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno == EINTR) continue;
    char byte = 0;
    if ((waiting[1].revents & POLLIN) != 0 && ::read(pipe, &byte, 1) == 1) return byte;
    return 0;
  }
}

}  // namespace

struct ChatTerminal::Settings {
  termios before{};
};

bool stdin_is_terminal() {
  return ::isatty(STDIN_FILENO) == 1;
}

bool stdin_is_piped() {
  struct stat facts = {};
  return ::fstat(STDIN_FILENO, &facts) == 0 && (S_ISFIFO(facts.st_mode) || S_ISREG(facts.st_mode));
}

bool stdin_answers_within(std::chrono::milliseconds time) {
  pollfd waiting{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, static_cast<int>(time.count())) != 0;
}

ChatTerminal::ChatTerminal() {
  const sigset_t set = watched_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by all later threads: only the watcher takes it
  if (::pipe(wake_) != 0) wake_[0] = wake_[1] = -1;
  prepare_terminal();
  watcher_ = std::jthread([this](const std::stop_token& quit) { watch(quit); });
}

ChatTerminal::~ChatTerminal() {
  watcher_.request_stop();
  watcher_.join();
  restore_terminal();
  for (const int descriptor : wake_) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

// The terminal keeps its own line editing. Pastes are marked, and the marks are hidden (they would appear as ^[[200~).
void ChatTerminal::prepare_terminal() {
  if (!stdin_is_terminal() || !format::stdout_is_terminal()) return;
  settings_ = std::make_unique<Settings>();
  if (::tcgetattr(STDIN_FILENO, &settings_->before) != 0) {
    settings_.reset();
    return;
  }
  termios changed = settings_->before;
  changed.c_lflag &= ~static_cast<tcflag_t>(ECHOCTL);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &changed);
  show(kPasteModeOn);
}

void ChatTerminal::restore_terminal() {
  if (settings_ == nullptr) return;
  show(kPasteModeOff);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &settings_->before);
}

void ChatTerminal::watch(const std::stop_token& quit) {
  const sigset_t wanted = watched_set();
  const timespec poll_interval{.tv_sec = 0, .tv_nsec = 100'000'000};
  while (!quit.stop_requested()) {
    const int signal = ::sigtimedwait(&wanted, nullptr, &poll_interval);
    if (signal < 0) continue;
    if (signal == SIGWINCH) {
      if (!resized_.exchange(true)) [[maybe_unused]]
        const ssize_t written = ::write(wake_[1], &kResized, 1);
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (work_.stop_possible()) {
      work_.request_stop();
    } else {
      [[maybe_unused]] const ssize_t written = ::write(wake_[1], &kInterrupted, 1);
    }
  }
}

std::stop_token ChatTerminal::begin_work() {
  const std::lock_guard lock(mutex_);
  work_ = std::stop_source();
  return work_.get_token();
}

void ChatTerminal::end_work() {
  const std::lock_guard lock(mutex_);
  work_ = std::stop_source(std::nostopstate);
}

ChatTerminal::Input ChatTerminal::read_line() {
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      Input input{.event = Event::line, .line = pending_.substr(0, end)};
      pending_.erase(0, end + 1);
      return input;
    }
    const char woken = wait_for_input(wake_[0]);
    if (woken == kResized) {
      resized_ = false;
      continue;
    }
    if (woken == kInterrupted) {
      pending_.clear();
      return {.event = Event::interrupted, .line = {}};
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      if (pending_.empty()) return {.event = Event::end_of_input, .line = {}};
      return {.event = Event::line, .line = std::exchange(pending_, {})};
    }
    pending_.append(bytes.data(), static_cast<size_t>(count));
  }
}

LineEditor::Input ChatTerminal::next_input() {
  for (;;) {
    if (pending_.empty()) {
      const char woken = wait_for_input(wake_[0]);
      if (woken == kResized) {
        resized_ = false;
        return {.event = LineEditor::Event::resized};
      }
      if (woken == kInterrupted) return {.event = LineEditor::Event::interrupted};
      std::array<char, 4096> bytes{};
      const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return {.event = LineEditor::Event::end_of_input};
      pending_.assign(bytes.data(), static_cast<size_t>(count));
      next_byte_ = 0;
    }
    const char byte = pending_[next_byte_++];
    if (next_byte_ == pending_.size()) pending_.clear();
    return {.event = LineEditor::Event::byte, .byte = byte};
  }
}

void ChatTerminal::hide_typing() {
  termios changed{};
  if (settings_ == nullptr || ::tcgetattr(STDIN_FILENO, &changed) != 0) return;
  changed.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
  changed.c_iflag &= ~static_cast<tcflag_t>(ICRNL);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &changed);
}

}  // namespace dspack::runtime
