// Decodes keys from the bytes of a terminal: UTF-8 characters, control characters, escape sequences (ECMA-48; xterm's
// and the Linux console's) and pastes in bracketed paste mode (xterm, "Bracketed Paste Mode"). Unknown sequences and
// control characters are dropped whole: none of their bytes becomes text.
// Threads: single-thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace dspack::runtime {

enum class Key {
  character,  // in `text`, as UTF-8
  paste,      // in `text`, up to kMaxPasteBytes, as lines that end in line feeds
  enter,
  new_line,  // within a message
  backspace,
  remove,  // deletes the character right of the cursor
  left,
  right,
  word_left,
  word_right,
  home,
  end,
  up,
  down,
  kill_to_end,
  kill_to_begin,
  kill_word,
  kill_next_word,
  yank,
  transpose,
  search,
  cancel,
  clear_screen,
  end_or_remove,  // Ctrl-D
};

struct KeyPress {
  Key key = Key::character;
  std::string text = {};
  size_t lost_bytes = 0;  // bytes of a paste that were dropped for lack of room
};

class KeyDecoder {
 public:
  /// Longer pastes are cut; far above the context of any model.
  static constexpr size_t kMaxPasteBytes = 16U << 20U;

  /// The key that this byte completes, if it does.
  std::optional<KeyPress> push(char byte);
  /// Forgets a sequence or a paste that has begun.
  void reset() { *this = KeyDecoder(); }

 private:
  enum class State {
    ground,
    escape,        // after ESC
    intermediate,  // after ESC and an intermediate character
    csi,           // after ESC [
    console_key,   // after ESC [ [
    ss3,           // after ESC O
    text,          // after ESC ] P X ^ _: a text that ends in BEL or ESC backslash, such as a terminal's reply
    text_escape,   // after ESC within it
    mouse,         // after ESC [ M: three bytes
  };

  std::optional<KeyPress> ground(char byte);
  std::optional<KeyPress> control(char byte);
  std::optional<KeyPress> character(char byte);
  std::optional<KeyPress> escape(char byte);
  std::optional<KeyPress> csi(char byte);
  std::optional<KeyPress> csi_key(char final_byte);
  std::optional<KeyPress> paste(KeyPress press);

  State state_ = State::ground;
  std::string parameters_;  // parameters of a CSI sequence
  std::string character_;   // bytes of an incomplete character
  size_t left_ = 0;         // bytes left of `mouse`
  bool pasting_ = false;
  bool after_return_ = false;  // in a paste: a line feed that follows belongs to the same line end
  std::string pasted_;
  size_t lost_bytes_ = 0;
};

}  // namespace dspack::runtime
