// Makes messages of typed lines. One line is a message, but for three ways to write several: a pasted text stays whole,
// a line that ends in a backslash continues, and """ begins and ends a block. Threads: single-thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dspack::runtime {

class MessageAssembler {
 public:
  /// Takes the next line, without its line feed; returns the message that it completes, if it does. A terminal in
  /// bracketed paste mode marks what is pasted with ESC[200~ and ESC[201~ (xterm, "Bracketed Paste Mode").
  std::optional<std::string> push(std::string_view line);
  /// Whether a message has begun and is not complete.
  [[nodiscard]] bool is_open() const { return pasting_ || in_block_ || has_line_; }
  /// What there is, when no more lines follow; nullopt if nothing.
  std::optional<std::string> finish();
  /// Forgets a message that has begun.
  void reset();

 private:
  std::string strip_paste_marks(std::string_view line);
  std::optional<std::string> take();

  std::string text_;
  bool pasting_ = false;
  bool in_block_ = false;
  bool has_line_ = false;  // text_ holds at least one line, which may be empty
};

}  // namespace dspack::runtime
