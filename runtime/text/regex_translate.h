// Splits a pattern of Oniguruma (Ruby syntax) or of Rust's regex and fancy-regex into the syntax between characters,
// which PCRE2 reads alike, and the sets of characters, which PCRE2 never sees as such (see ClassMap).
//
// Differences between the dialects:
//   ^ $     lines in Ruby syntax; refused in Rust's, where they would be ends of the text.
//   (?i:x)  Unicode's simple case folding in both: s is also U+017F, k also U+212A. Oniguruma folds "ss", "st", "ff",
//           "fi" and "fl" to single characters too: refused there, and letters beyond ASCII everywhere.
// Wherever a match can continue in several ways the pattern gets a callout, which counts the work: at the beginning of
// every alternative and group, after every repetition, and in sequences often enough that little is done between two
// callouts. Constructs are refused if the engines disagree (\h \w \b \d \x {,n} {n}?) or no tokenizer needs them.
// Threads: thread-safe (a pure function). Errors: unsupported (a construct, with its place), invalid (syntax).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/codepoint_set.h"

namespace dspack::runtime {

enum class RegexDialect {
  oniguruma,  // tokenizer.json
  rust,       // tiktoken
};

struct TranslatedPattern {
  struct Fragment {
    std::string syntax;           // PCRE2 syntax
    std::optional<size_t> set{};  // index into sets: a character of this set follows
  };
  std::vector<Fragment> parts;
  std::vector<CodepointSet> sets;
  /// The whole pattern is one sequence that starts with SET+. If an attempt fails, all later starts in the same run of
  /// the set fail too, because they can reach no other position; so they are skipped.
  bool starts_with_run = false;
};

[[nodiscard]] Result<TranslatedPattern> translate_pattern(std::string_view pattern, RegexDialect dialect);

}  // namespace dspack::runtime
