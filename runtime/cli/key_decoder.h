// Keys from the bytes of a terminal: UTF-8 characters, control characters, escape sequences (ECMA-48; xterm's and the
// Linux console's) and pastes in bracketed paste mode (xterm, "Bracketed Paste Mode"). A sequence that means no key of
// ours is dropped whole, and so is a control character: no byte of them becomes text.
// Threads: single-thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace dspack::runtime {

enum class Key {
  character,  // `text` has it, in UTF-8
  paste,      // `text` has it, up to kMostPasteBytes, in lines that end in line feeds
  enter,
  new_line,  // within a message
  backspace,
  remove,  // what is right of the cursor
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
  size_t lost_bytes = 0;  // of a paste, for which there was no room
};

class KeyDecoder {
 public:
  /// What of a paste is kept; far above the context of any model.
  static constexpr size_t kMostPasteBytes = 16U << 20U;

  /// The key that this byte completes, if it does.
  std::optional<KeyPress> push(char byte);
  /// Forgets a sequence or a paste that has begun.
  void reset() { *this = KeyDecoder(); }

 private:
  enum class State {
    ground,
    escape,        // after ESC
    intermediate,  // after ESC and a character that another one follows
    csi,           // after ESC [
    console_key,   // after ESC [ [
    ss3,           // after ESC O
    text,          // after ESC ] P X ^ _: a text that ends in BEL or ESC backslash, an answer of a terminal say
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
  std::string parameters_;  // of a CSI sequence
  std::string character_;   // the bytes of a character that is not complete
  size_t left_ = 0;         // bytes of `mouse`
  bool pasting_ = false;
  bool after_return_ = false;  // in a paste: a line feed that follows ends no other line
  std::string pasted_;
  size_t lost_bytes_ = 0;
};

}  // namespace dspack::runtime
