// Parts of a pattern that match one character: escapes such as \p{L}, and classes such as [a-z&&[^x]].
//
// A class that the dialects read differently is refused.
// Threads: a PatternCursor belongs to one thread. Lifetime: it views the pattern.
// Errors: unsupported (a construct, with its place), invalid (syntax).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "format/base/result.h"
#include "runtime/text/codepoint_set.h"

namespace dspack::runtime {

/// A position in a pattern.
class PatternCursor {
 public:
  explicit PatternCursor(std::string_view pattern) : pattern_(pattern) {}

  [[nodiscard]] bool done() const { return at_ == pattern_.size(); }
  [[nodiscard]] bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  /// The byte `ahead` of the current one; NUL after the end.
  [[nodiscard]] char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  [[nodiscard]] std::string_view take(size_t bytes);
  /// Takes one literal character.
  [[nodiscard]] Result<uint32_t> take_character();
  [[nodiscard]] Error refuse(std::string_view what) const;

 private:
  std::string_view pattern_;
  size_t at_ = 0;
};

/// The meaning of an escape or a class.
struct CharacterItem {
  CodepointSet set;
  std::optional<uint32_t> character;  // set if the syntax is a single character, which may begin or end a range
};

/// At a backslash.
[[nodiscard]] Result<CharacterItem> parse_escape(PatternCursor& cursor);
/// At an opening bracket.
[[nodiscard]] Result<CodepointSet> parse_class(PatternCursor& cursor);

}  // namespace dspack::runtime
