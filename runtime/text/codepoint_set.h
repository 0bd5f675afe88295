// A set of Unicode code points, such as the meaning of \p{L} or [a-z].
// Threads: thread-safe (a value). Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace dspack::runtime {

inline constexpr uint32_t kLastCodepoint = 0x10FFFF;

/// Inclusive on both sides.
struct CodepointRange {
  uint32_t first;
  uint32_t last;
  bool operator==(const CodepointRange&) const = default;
};

class CodepointSet {
 public:
  CodepointSet() = default;
  /// Ranges in any order; they may overlap.
  explicit CodepointSet(std::vector<CodepointRange> ranges);
  [[nodiscard]] static CodepointSet of(uint32_t codepoint) { return CodepointSet({{codepoint, codepoint}}); }

  [[nodiscard]] bool contains(uint32_t codepoint) const;
  /// Ascending, with gaps between.
  [[nodiscard]] std::span<const CodepointRange> ranges() const { return ranges_; }
  bool operator==(const CodepointSet&) const = default;

  [[nodiscard]] CodepointSet operator|(const CodepointSet& other) const;
  [[nodiscard]] CodepointSet operator&(const CodepointSet& other) const;
  /// The complement within U+0000 to U+10FFFF.
  [[nodiscard]] CodepointSet operator~() const;

 private:
  std::vector<CodepointRange> ranges_;
};

// Sets of characters by property, pinned to Unicode 16.0: the version by which Hugging Face tokenizers (Oniguruma
// 6.9.10) and tiktoken (Rust's regex) split text, whatever this machine's libraries use. nullopt: an unknown property.

/// A general category ("Lu"), a major one ("L"), or the script "Han".
[[nodiscard]] std::optional<CodepointSet> unicode_property(std::string_view name);
/// The property White_Space: \s of both dialects.
[[nodiscard]] CodepointSet white_space();
/// \w of Rust's regex, by which Hugging Face decides where a single_word token may match.
[[nodiscard]] CodepointSet word_characters();
/// Rust's char::is_numeric, by which Hugging Face's step Digits cuts: Unicode 17.0 in tokenizers 0.23, one version
/// ahead of \p{N}.
[[nodiscard]] CodepointSet numeric_characters();

}  // namespace dspack::runtime
