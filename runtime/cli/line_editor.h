// Typing a message on a terminal: libedit shows and edits the line; it receives only the keys of KeyDecoder, so that
// escape sequences stay out of the text. The only user of libedit.
// Threads: call from the main thread; sets the process's LC_CTYPE. Errors: none; `open` returns null if the terminal
// cannot be controlled (TERM unset, dumb or unknown).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dspack::runtime {

class LineEditor {
 public:
  enum class Event { byte, resized, interrupted, end_of_input };
  struct Input {
    Event event = Event::end_of_input;
    char byte = 0;
  };
  /// Waits for the next byte of the terminal, or for another event.
  using ReadInput = std::function<Input()>;

  [[nodiscard]] static std::unique_ptr<LineEditor> open(ReadInput read_input);
  virtual ~LineEditor() = default;

  enum class Outcome { message, interrupted, end_of_input };
  struct Typed {
    Outcome outcome = Outcome::end_of_input;
    std::string text;  // interrupted: the text typed so far
  };
  /// A message may have several lines. Long pastes are displayed abbreviated, but complete in the text.
  [[nodiscard]] virtual Typed read(const std::string& prompt) = 0;
  /// Adds an entry for arrow up and Ctrl-R. The oldest are dropped beyond a limit.
  virtual void remember(const std::string& text) = 0;
};

}  // namespace dspack::runtime
