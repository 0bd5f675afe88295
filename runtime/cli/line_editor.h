// Typing a message on a terminal: libedit shows and edits the line; what reaches it are the keys of KeyDecoder, so that
// escape sequences stay out of the text. The only user of libedit.
// Threads: call from the main thread; sets the process's LC_CTYPE. Errors: none; `open` returns null where the terminal
// cannot be steered (TERM unset, dumb or unknown).
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
  /// Waits for the next byte of the terminal, or for what else there is.
  using ReadInput = std::function<Input()>;

  [[nodiscard]] static std::unique_ptr<LineEditor> open(ReadInput read_input);
  virtual ~LineEditor() = default;

  enum class Outcome { message, interrupted, end_of_input };
  struct Typed {
    Outcome outcome = Outcome::end_of_input;
    std::string text;  // interrupted: what was typed so far
  };
  /// A message may have several lines. Long pastes are shown in brief and are whole in the text.
  [[nodiscard]] virtual Typed read(const std::string& prompt) = 0;
  /// What the arrow up brings back, and Ctrl-R finds. The oldest of very many are forgotten.
  virtual void remember(const std::string& text) = 0;
};

}  // namespace dspack::runtime
