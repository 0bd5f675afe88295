// A chat's terminal: lines or bytes from standard input, and Ctrl-C that stops either an answer or the typing. The only
// file of this folder that asks the operating system for signals and terminals.
// Threads: call from the main thread, before others start; a thread of its own waits for the signal. Errors: none;
// where standard input is no terminal, lines are read and nothing is set.
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
/// Whether it is a pipe or a file, which somebody has put there on purpose. Other things that are no terminal
/// (/dev/null, the sockets that programs in Node.js give their children and leave open) are not.
[[nodiscard]] bool stdin_is_piped();
/// False if nothing has come, nor the end, after this time.
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

  /// Whether a person types at a terminal and reads there.
  [[nodiscard]] bool is_interactive() const { return settings_ != nullptr; }
  /// For a line editor, which sets the terminal itself while it reads: the next byte, or what else there is.
  [[nodiscard]] LineEditor::Input next_input();
  /// From here on nothing that is typed is shown, until a line editor reads it.
  void hide_typing();

  /// Until the next `end_work`, Ctrl-C requests a stop of this token instead of interrupting `read_line`.
  [[nodiscard]] std::stop_token begin_work();
  void end_work();

 private:
  void watch(const std::stop_token& quit);
  void prepare_terminal();
  void restore_terminal();

  struct Settings;
  std::unique_ptr<Settings> settings_;  // as they were; null where stdin is no terminal
  int wake_[2] = {-1, -1};              // a pipe: the watcher writes, who reads waits for it
  std::atomic<bool> resized_ = false;   // the terminal, since the last look; its byte is in the pipe
  std::string pending_;                 // bytes after the last line
  size_t next_byte_ = 0;                // of pending_, for next_input
  std::mutex mutex_;
  std::stop_source work_{std::nostopstate};  // GUARDED_BY(mutex_); no state: nothing is under way
  std::jthread watcher_;                     // last: it uses all of the above
};

}  // namespace dspack::runtime
