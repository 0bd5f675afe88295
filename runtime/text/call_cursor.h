// A position in a growing text, for reading marks and the text between them. A step takes what it asks for, reports
// that it is missing, or that more text is needed; then the cursor does not move.
// Threads: single-thread. Lifetime: borrows the text shown last. Errors: none.
#pragma once

#include <span>
#include <string_view>

namespace dspack::runtime {

/// White space of JSON, and around marks.
inline constexpr std::string_view kReplySpace = " \t\r\n";
[[nodiscard]] std::string_view trimmed(std::string_view text);

class CallCursor {
 public:
  enum class Step { taken, missing, undecided };

  /// `text`: the previous text with more appended.
  void show(std::string_view text) { text_ = text; }
  [[nodiscard]] std::string_view text() const { return text_; }
  [[nodiscard]] size_t at() const { return at_; }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  void take(size_t bytes) { at_ += bytes; }
  void skip_space();

  [[nodiscard]] Step take_mark(std::string_view mark);
  /// Takes the first of `marks` that begins here; `found`: its index.
  [[nodiscard]] Step take_any(std::span<const std::string_view> marks, size_t& found);
  /// Takes everything before `end`, and `end`; missing if that is longer than `most` bytes.
  [[nodiscard]] Step take_until(std::string_view end, size_t most, std::string_view& between);

 private:
  std::string_view text_;
  size_t at_ = 0;
  size_t searched_ = 0;  // take_until has found no `end` that begins before this
};

/// Number of bytes at the end of a text that may be the beginning of a mark.
[[nodiscard]] size_t begun_mark(std::string_view text, std::span<const std::string_view> marks);

}  // namespace dspack::runtime
