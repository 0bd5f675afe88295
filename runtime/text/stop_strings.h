// Ends a text before the first of several strings that occurs in it, while the text arrives in pieces.
//
// What comes out does not depend on how the text is cut into pieces: the string that is complete first ends it; of
// those that end at the same byte, the longest. Text that may be the beginning of a stop string is held back until that
// is decided. Threads: belongs to one thread. Lifetime: owns its strings. Errors: none.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dspack::runtime {

class StopStrings {
 public:
  /// None of `strings` is empty. No strings: the text passes through.
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  /// What of the text so far is certain to stand before any stop string, and has not been returned yet.
  [[nodiscard]] std::string push(std::string_view text);
  /// The stop string that has come, or nullptr; whatever is pushed later is dropped.
  [[nodiscard]] const std::string* found() const { return found_ ? &strings_[*found_] : nullptr; }
  /// The text has ended: what was held back, which was no stop string after all. Afterwards the next text can begin.
  [[nodiscard]] std::string finish();

 private:
  [[nodiscard]] std::optional<size_t> longest_ending(std::string_view text) const;
  [[nodiscard]] size_t longest_begun(std::string_view text) const;

  std::vector<std::string> strings_;
  std::string held_;
  std::optional<size_t> found_;  // of them
};

}  // namespace dspack::runtime
