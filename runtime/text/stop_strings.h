// Ends a text before the first occurrence of any of several strings, while the text arrives in pieces.
//
// The output does not depend on how the text is cut into pieces: the string that is complete first ends the text; of
// several that end at the same byte, the longest. Text that may be the beginning of a stop string is held back until
// that is decided.
// Threads: belongs to one thread. Lifetime: owns its strings. Errors: none.
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

  /// Returns the text that is certain to precede any stop string and has not been returned yet.
  [[nodiscard]] std::string push(std::string_view text);
  /// The stop string that was found, or nullptr; text that is pushed afterwards is dropped.
  [[nodiscard]] const std::string* found() const { return found_ ? &strings_[*found_] : nullptr; }
  /// Ends the text: returns the text held back, which was not a stop string. Afterwards the next text can begin.
  [[nodiscard]] std::string finish();

 private:
  [[nodiscard]] std::optional<size_t> longest_ending(std::string_view text) const;
  [[nodiscard]] size_t longest_begun(std::string_view text) const;

  std::vector<std::string> strings_;
  std::string held_;
  std::optional<size_t> found_;  // index into strings_
};

}  // namespace dspack::runtime
