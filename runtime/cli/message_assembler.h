// Assembles messages from typed lines. A line is a message, except in three ways to write several lines: a paste stays
// whole, a line that ends in a backslash continues, and """ begins and ends a block.
// Threads: single-thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dspack::runtime {

class MessageAssembler {
 public:
  /// Takes the next line, without its line feed; returns the message if the line completes it. A terminal in bracketed
  /// paste mode marks pasted text with ESC[200~ and ESC[201~ (xterm, "Bracketed Paste Mode").
  std::optional<std::string> push(std::string_view line);
  /// Whether a message has begun and is incomplete.
  [[nodiscard]] bool is_open() const { return pasting_ || in_block_ || has_line_; }
  /// Returns an incomplete message when no more lines follow; nullopt if there is none.
  std::optional<std::string> finish();
  /// Drops an incomplete message.
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
