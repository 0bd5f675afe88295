// A place in a text that grows, for reading marks and what stands between them: a step takes what it is asked for, says
// that it is not there, or that more of the text is needed, and then the cursor stays where it was.
// Threads: single-thread. Lifetime: borrows the text that it was shown last. Errors: none.
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

  /// The same text as before, and more of it.
  void show(std::string_view text) { text_ = text; }
  [[nodiscard]] std::string_view text() const { return text_; }
  [[nodiscard]] size_t at() const { return at_; }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  void take(size_t bytes) { at_ += bytes; }
  void skip_space();

  [[nodiscard]] Step take_mark(std::string_view mark);
  /// The first of `marks` that stands here; `found`: which.
  [[nodiscard]] Step take_any(std::span<const std::string_view> marks, size_t& found);
  /// Everything before `end`, and that; missing if it is longer than `most` bytes.
  [[nodiscard]] Step take_until(std::string_view end, size_t most, std::string_view& between);

 private:
  std::string_view text_;
  size_t at_ = 0;
  size_t searched_ = 0;  // before this no end begins that take_until has looked for
};

/// Bytes at the end of a text that may be the beginning of a mark.
[[nodiscard]] size_t begun_mark(std::string_view text, std::span<const std::string_view> marks);

}  // namespace dspack::runtime
