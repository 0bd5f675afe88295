// Regular expressions as tokenizer.json writes them: the dialect is Oniguruma's (Ruby syntax), the engine is PCRE2.
//
// Only constructs that mean the same in both, or can be rewritten to, are accepted: literals, escaped punctuation,
// \r \n \t \f, \s \S, \p{L} \P{L} (and M, N, P, S, Z), classes without nesting, groups (?: ?= ?! ?<= ?<! ?>), | . ^ $
// and quantifiers. Everything else is `unsupported` with its place, so that no pattern is silently read differently.
// Threads: a Regex is immutable and thread-safe; a RegexScratch belongs to one thread. Lifetime: scratch is independent
// of the Regex. Errors: unsupported (construct), invalid (syntax); matching: invalid where the pattern needs too many
// steps on this text. Text is never dropped.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

struct pcre2_real_code_8;

namespace dspack::runtime {

/// Oniguruma's pattern as a PCRE2 pattern. Exposed for its tests.
[[nodiscard]] Result<std::string> translate_pattern(std::string_view pattern);
/// A pattern that matches exactly `text`.
[[nodiscard]] std::string escape_pattern(std::string_view text);
/// A PCRE2 pattern for one character of Rust's \w: alphabetic, marks, decimal digits, connectors and joiners.
[[nodiscard]] std::string word_character_pattern();

/// Memory for matching, to be used again from call to call.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };

  /// From Oniguruma's dialect.
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern);
  /// From PCRE2's own dialect.
  [[nodiscard]] static Result<Regex> compile_native(std::string_view pattern);

  /// All matches of valid UTF-8 `text`, left to right, not overlapping; an empty match directly behind a match does
  /// not count. Replaces what `matches` held.
  [[nodiscard]] Result<void> find_all(std::string_view text, RegexScratch& scratch, std::vector<Match>& matches) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}
  [[nodiscard]] Result<bool> find(std::string_view text, size_t from, RegexScratch& scratch, Match& match) const;

  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace dspack::runtime
