// Oniguruma (Ruby syntax) to PCRE2. What differs and how it is bridged:
//   \s      White_Space in Oniguruma; PCRE2 adds U+180E. Written out as a class.
//   \p{X}   each library's own Unicode version. The characters since Unicode 14.0 are added by hand.
//   ^ $     always lines in Ruby syntax: PCRE2_MULTILINE, set where the pattern is compiled.
// What is refused is refused because the two disagree (\h \w \b \d \x {,n} {n}? (?i) [a[b]] [a&&b]) or nobody needs it.
#include <fmt/format.h>

#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/// The characters that a category has gained since Unicode 14.0, as members of a class.
std::string recent_members(char category) {
  std::string members;
  for (const CodepointRange& range : recent_additions(category)) {
    members += fmt::format(R"(\x{{{:x}}}-\x{{{:x}}})", range.first, range.last);
  }
  return members;
}

std::string category_members(char category) {
  return fmt::format(R"(\p{{{}}}{})", category, recent_members(category));
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (at_ < pattern_.size())
      TRY(item());
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }
  [[nodiscard]] Error refuse(std::string_view what) const {
    return {ErrorKind::unsupported, fmt::format("regular expression: {} at byte {}", what, at_)};
  }

  Result<void> item() {
    switch (pattern_[at_]) {
      case '\\': return escape(Inside::pattern);
      case '[': return character_class();
      case '(': return group();
      case '{': return counted();
      default: copy(1); return {};
    }
  }

  Result<void> group() {
    constexpr std::string_view kKnown[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (next_is("(*")) return refuse("'(*'");  // a control verb of PCRE2
    if (!next_is("(?")) {
      copy(1);
      return {};
    }
    for (const std::string_view start : kKnown) {
      if (!next_is(start)) continue;
      copy(start.size());
      return {};
    }
    return refuse("this kind of group");
  }

  /// {n} {n,} {n,m}
  Result<void> counted() {
    size_t end = at_ + 1;
    size_t commas = 0;
    while (end < pattern_.size() && ((pattern_[end] >= '0' && pattern_[end] <= '9') || pattern_[end] == ',')) {
      commas += pattern_[end] == ',' ? 1 : 0;
      ++end;
    }
    const bool closed = end < pattern_.size() && pattern_[end] == '}';
    if (!closed || commas > 1 || end == at_ + 1 || pattern_[at_ + 1] == ',') return refuse("this use of '{'");
    const char after = end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    if (after == '?' || after == '+' || after == '*') return refuse("'}' followed by another quantifier");
    copy(end + 1 - at_);
    return {};
  }

  enum class Inside { pattern, character_class };

  Result<void> escape(Inside inside) {
    if (at_ + 1 >= pattern_.size()) return refuse("'\\' at the end");
    const char c = pattern_[at_ + 1];
    if (is_ascii_punctuation(c) || c == 'r' || c == 'n' || c == 't' || c == 'f') {
      copy(2);
      return {};
    }
    if (c == 's' || c == 'S') return members(inside, c == 'S', kWhiteSpace, 2);
    if (c == 'p' || c == 'P') {
      constexpr std::string_view kMajor = "LMNPSZ";
      const std::string_view name = pattern_.substr(at_ + 2, 3);
      if (name.size() < 3 || name[0] != '{' || kMajor.find(name[1]) == std::string_view::npos || name[2] != '}') {
        return refuse("a property other than L, M, N, P, S, Z");
      }
      return members(inside, c == 'P', category_members(name[1]), 5);
    }
    return refuse(fmt::format("'\\{}'", c >= ' ' && c <= '~' ? std::string(1, c) : "..."));
  }

  Result<void> members(Inside inside, bool negated, std::string_view text, size_t source_bytes) {
    if (inside == Inside::pattern) {
      out_ += negated ? "[^" : "[";
      out_ += text;
      out_ += "]";
    } else {
      if (negated) return refuse("a negated property in a class");
      out_ += text;
    }
    at_ += source_bytes;
    return {};
  }

  Result<void> character_class() {
    copy(1);
    if (next_is("^")) copy(1);
    if (next_is("]")) return refuse("an empty class");
    bool after_set = false;     // the last member was \s or \p{..}
    bool after_hyphen = false;  // the last member was '-', and not the first
    for (bool first = true; at_ < pattern_.size(); first = false) {
      const char c = pattern_[at_];
      if (c == ']') {
        copy(1);
        return {};
      }
      if (c == '[' || next_is("&&")) return refuse("a class within a class");
      const bool is_set = c == '\\' && at_ + 1 < pattern_.size() && (next_is("\\s") || next_is("\\p"));
      if (is_set && after_hyphen) return refuse("a range that ends with a set");
      if (c == '-' && after_set && !next_is("-]")) return refuse("a range that starts with a set");
      if (c == '\\') {
        TRY(escape(Inside::character_class));
      } else {
        copy(1);
      }
      after_set = is_set;
      after_hyphen = c == '-' && !first;
    }
    return refuse("a class that is not closed");
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

std::string escape_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (is_ascii_punctuation(c)) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

std::string word_character_pattern() {
  // Alphabetic is L, M in part, Nl and the circled and squared letters; \w has all of M anyway. The recent numbers are
  // decimal digits, but for the Kaktovik numerals, which the lookahead excludes.
  return fmt::format(R"((?![\x{{1d2c0}}-\x{{1d2d3}}])[{}{}{}\p{{Nl}}\p{{Nd}}\p{{Pc}}\x{{24b6}}-\x{{24e9}})"
                     R"(\x{{1f130}}-\x{{1f149}}\x{{1f150}}-\x{{1f169}}\x{{1f170}}-\x{{1f189}}\x{{200c}}\x{{200d}}])",
                     category_members('L'), category_members('M'), recent_members('N'));
}

}  // namespace dspack::runtime
