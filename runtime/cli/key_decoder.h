// Decodes keys from the bytes of a terminal: UTF-8 characters, control characters, escape sequences (ECMA-48; xterm's
// and the Linux console's) and pastes in bracketed paste mode (xterm, "Bracketed Paste Mode"). Unknown sequences and
// control characters are dropped whole: none of their bytes becomes text.
// Threads: single-thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace dspack::runtime {

/// The keys of the editor, with the control characters by which a terminal sends them and the editor knows them.
enum class Key : char {
  home = 'A' & 0x1f,
  left = 'B' & 0x1f,
  end_or_remove = 'D' & 0x1f,
  end = 'E' & 0x1f,
  right = 'F' & 0x1f,
  cancel = 'G' & 0x1f,
  backspace = 'H' & 0x1f,
  kill_to_end = 'K' & 0x1f,
  clear_screen = 'L' & 0x1f,
  enter = 'M' & 0x1f,
  down = 'N' & 0x1f,
  up = 'P' & 0x1f,
  search = 'R' & 0x1f,
  transpose = 'T' & 0x1f,
  kill_to_begin = 'U' & 0x1f,
  kill_word = 'W' & 0x1f,
  yank = 'Y' & 0x1f,
  // Keys that terminals send as sequences; the characters are the editor's alone.
  word_left = 0x1c,
  word_right = 0x1d,
  kill_next_word = 0x1e,
  remove = 0x1f,  // deletes the character right of the cursor
  // Text, and no keys of the editor.
  character = 'c',  // in `text`, as UTF-8
  paste = 'p',      // in `text`, up to kMaxPasteBytes, as lines that end in line feeds
  new_line = 'n',   // within a message
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
