// Regular expressions as in tokenizer.json (Oniguruma's dialect) and tiktoken (Rust's); the engine is PCRE2.
//
// Only constructs that mean the same in PCRE2, or can be rewritten, are accepted: literals, escaped punctuation, \r \n
// \t \f, \s \S, \p{..} \P{..} of general categories and Han, classes with nested classes and &&, groups (?: ?= ?! ?<=
// ?<! ?> ?i:), | . and quantifiers; ^ $ in Oniguruma's. Everything else is `unsupported` with its place, so that no
// pattern is silently read differently. Characters are classified by the tables of codepoint_set.h: the engine sees
// classes of characters (ClassMap), one byte each.
// Threads: a Regex is immutable and thread-safe; a RegexScratch belongs to one thread. Lifetime: scratch is independent
// of the Regex. Errors: unsupported (construct), invalid (syntax); matching: invalid if the pattern needs more steps on
// this text than are left. Text is never dropped.
//
// Steps are counted by callouts of the engine, which the translation inserts wherever a match can be tried in another
// way (regex_translate.h): PCRE2's own limits restart with every call and every start position, and its JIT counts only
// some alternatives.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/codepoint_set.h"
#include "runtime/text/regex_translate.h"
#include "runtime/text/work_budget.h"

struct pcre2_real_code_8;

namespace dspack::runtime {

/// Characters by class: all characters that a pattern cannot distinguish form one class, and a class is one byte. The
/// engine sees a text as classes: so it needs no Unicode tables, and a set of characters is a set of bytes.
/// Threads: immutable, thread-safe.
class ClassMap {
 public:
  /// The newline is a class of its own, with the byte '\n'. Errors: unsupported (more than 256 classes).
  [[nodiscard]] static Result<ClassMap> build(std::span<const CodepointSet> sets);

  /// The classes that make up set `index` of those given to build.
  [[nodiscard]] const std::bitset<256>& classes_of(size_t index) const { return members_[index]; }

  /// Maps valid UTF-8 `text` to one class per character. `offsets` is where each character starts, followed by the
  /// text's size; it stays empty if every character is one byte.
  void map(std::string_view text, std::vector<uint8_t>& classes, std::vector<uint32_t>& offsets) const;

 private:
  static constexpr uint32_t kPageBits = 8;
  using Page = std::array<uint8_t, 1U << kPageBits>;

  ClassMap() = default;
  [[nodiscard]] uint8_t class_of(uint32_t codepoint) const {
    return pages_[page_of_[codepoint >> kPageBits]][codepoint & ((1U << kPageBits) - 1)];
  }
  void fill_pages(std::span<const uint32_t> starts, std::span<const uint8_t> classes);

  std::array<uint16_t, (kLastCodepoint >> kPageBits) + 1> page_of_{};
  std::vector<Page> pages_;
  std::vector<std::bitset<256>> members_;
};

/// A pattern of either dialect that matches exactly `text`.
[[nodiscard]] std::string escape_pattern(std::string_view text);

/// Memory for matching, reused between calls.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct MatchState;
  std::unique_ptr<MatchState> state_;
};

class Regex {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };

  [[nodiscard]] static Result<Regex> compile(std::string_view pattern, RegexDialect dialect = RegexDialect::oniguruma);
  /// Matches one character of `set`.
  [[nodiscard]] static Result<Regex> any_of(const CodepointSet& set);

  /// All matches in valid UTF-8 `text`, left to right, not overlapping; an empty match directly after a match does not
  /// count. Replaces the content of `matches`. Stops early once the budget has enough words.
  [[nodiscard]] Result<void> find_all(std::string_view text, WorkBudget& budget, RegexScratch& scratch,
                                      std::vector<Match>& matches) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  Regex(std::string shown, ClassMap classes, pcre2_real_code_8* code)
      : shown_(std::move(shown)), classes_(std::move(classes)), code_(code) {}
  [[nodiscard]] static Result<Regex> assemble(std::string shown, const TranslatedPattern& pattern);
  /// The first match at or after `from` in the scratch's classes; positions are counted in characters.
  [[nodiscard]] Result<bool> find(size_t from, RegexScratch& scratch, Match& match) const;

  std::string shown_;  // the pattern in quotes, for messages
  ClassMap classes_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace dspack::runtime
