// A chat's terminal: lines or bytes from standard input, and Ctrl-C, which stops either an answer or the typing. The
// only file of this folder that uses the operating system's signals and terminals.
// Threads: call from the main thread, before others start; its own thread waits for the signal. Errors: none; if
// standard input is no terminal, lines are read and no settings are changed.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "runtime/cli/line_editor.h"

namespace dspack::runtime {

[[nodiscard]] bool stdin_is_terminal();
/// Whether it is a pipe or a file, which was connected on purpose. Other non-terminals (/dev/null, the sockets that
/// Node.js programs give their children and leave open) do not count.
[[nodiscard]] bool stdin_is_piped();
/// False if neither data nor the end of input has arrived after this time.
[[nodiscard]] bool stdin_answers_within(std::chrono::milliseconds time);

class ChatTerminal {
 public:
  ChatTerminal();
  ~ChatTerminal();
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;

  enum class Event { line, end_of_input, interrupted };
  struct Input {
    Event event = Event::end_of_input;
    std::string line;  // without its line feed
  };
  /// Waits for a line or Ctrl-C.
  [[nodiscard]] Input read_line();

  /// Whether standard input and output are a terminal.
  [[nodiscard]] bool is_interactive() const { return settings_ != nullptr; }
  /// For a line editor, which sets the terminal itself while it reads: the next byte, or another event.
  [[nodiscard]] LineEditor::Input next_input();
  /// Hides typed text from now on, until a line editor reads it.
  void hide_typing();

  /// Until the next `end_work`, Ctrl-C requests a stop of this token instead of interrupting `read_line`.
  [[nodiscard]] std::stop_token begin_work();
  void end_work();

 private:
  void watch(const std::stop_token& quit);
  void prepare_terminal();
  void restore_terminal();

  struct Settings;
  std::unique_ptr<Settings> settings_;  // the original settings; null if not interactive
  int wake_[2] = {-1, -1};              // a pipe: the watcher writes, the reading functions wait for it
  std::atomic<bool> resized_ = false;   // the terminal was resized; its byte is in the pipe
  std::string pending_;                 // bytes after the last line
  size_t next_byte_ = 0;                // index into pending_, for next_input
  std::mutex mutex_;
  std::stop_source work_{std::nostopstate};  // GUARDED_BY(mutex_); no state: no work
  std::jthread watcher_;                     // last: uses all members above
};

}  // namespace dspack::runtime
