#include "runtime/text/regex_translate.h"

#include <algorithm>
#include <array>

#include "runtime/text/regex_class.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kCallout = "(?C)";
constexpr unsigned kMaxBetweenCallouts = 16;  // characters of a sequence
constexpr size_t kMaxSets = 4096;             // each is compared with all others; with 256 classes few are useful

constexpr uint32_t kLongS = 0x17F;
constexpr uint32_t kKelvin = 0x212A;

bool is_ascii_letter(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

uint32_t lower(uint32_t ascii_letter) {
  return ascii_letter | 0x20U;
}

CodepointSet case_variants(uint32_t ascii_letter) {
  const uint32_t small = lower(ascii_letter);
  CodepointSet set = CodepointSet::of(small) | CodepointSet::of(small - 0x20U);
  if (small == 's') set = set | CodepointSet::of(kLongS);
  if (small == 'k') set = set | CodepointSet::of(kKelvin);
  return set;
}

/// Pairs that Oniguruma also folds to one character (U+00DF, U+FB00 to U+FB02, U+FB05).
bool folds_to_one(char first, uint32_t second) {
  constexpr std::array<std::string_view, 5> kPairs = {"ss", "st", "ff", "fi", "fl"};
  return std::any_of(kPairs.begin(), kPairs.end(), [&](std::string_view pair) {
    return pair[0] == first && static_cast<unsigned char>(pair[1]) == second;
  });
}

class Translator {
 public:
  Translator(std::string_view pattern, RegexDialect dialect) : cursor_(pattern), dialect_(dialect) {}

  Result<TranslatedPattern> run() {
    while (!cursor_.done()) {
      TRY(item());
      if (out_.sets.size() > kMaxSets) return cursor_.refuse("so many different sets of characters");
    }
    find_run();
    return std::move(out_);
  }

 private:
  void syntax(std::string_view text) {
    if (out_.parts.empty() || out_.parts.back().set) out_.parts.emplace_back();
    out_.parts.back().syntax += text;
  }
  /// Inserts a callout, which counts work.
  void count_here() {
    syntax(kCallout);
    since_callout_ = 0;
  }
  void set(CodepointSet characters) {
    can_repeat_ = true;
    if (++since_callout_ > kMaxBetweenCallouts) count_here();
    const auto known = std::find(out_.sets.begin(), out_.sets.end(), characters);
    const auto index = static_cast<size_t>(known - out_.sets.begin());
    if (known == out_.sets.end()) out_.sets.push_back(std::move(characters));
    if (out_.parts.empty() || out_.parts.back().set) out_.parts.emplace_back();
    out_.parts.back().set = index;
  }

  Result<void> item() {
    const char c = cursor_.peek();
    switch (c) {
      case '(': return open_group();
      case ')':
        if (ignore_case_.size() > 1) ignore_case_.pop_back();
        syntax(cursor_.take(1));
        can_repeat_ = true;
        return {};
      case '{': return counted();
      case '|':
        previous_letter_ = '\0';
        top_level_choice_ = top_level_choice_ || ignore_case_.size() == 1;
        syntax(cursor_.take(1));
        count_here();
        can_repeat_ = false;
        return {};
      case '*':
      case '+':
      case '?': return repeated();
      case '^':
      case '$':
        if (dialect_ == RegexDialect::rust) return cursor_.refuse("'^' or '$'");
        syntax(cursor_.take(1));
        can_repeat_ = true;
        return {};
      default: return character();
    }
  }

  [[nodiscard]] Error broken(std::string_view what) const { return {ErrorKind::invalid, cursor_.refuse(what).message}; }

  /// * + ? and their lazy (*?) or possessive (*+) forms.
  Result<void> repeated() {
    if (!can_repeat_) return broken("a quantifier that follows nothing");
    const char kind = cursor_.peek(1);
    const size_t bytes = kind == '?' || kind == '+' ? 2 : 1;
    const char after = cursor_.peek(bytes);
    if (after == '?' || after == '+' || after == '*') return broken("a quantifier after a quantifier");
    syntax(cursor_.take(bytes));
    count_here();
    can_repeat_ = false;
    return {};
  }

  Result<void> open_group() {
    can_repeat_ = false;
    constexpr std::array<std::string_view, 6> kKnown = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (cursor_.next_is("(*")) return cursor_.refuse("'(*'");  // a control verb of PCRE2
    if (cursor_.next_is("(?i:")) {
      (void)cursor_.take(4);
      syntax("(?:");
      count_here();
      ignore_case_.push_back(true);
      return {};
    }
    ignore_case_.push_back(ignore_case_.back());
    if (!cursor_.next_is("(?")) {
      syntax(cursor_.take(1));
      count_here();
      return {};
    }
    for (const std::string_view start : kKnown) {
      if (!cursor_.next_is(start)) continue;
      syntax(cursor_.take(start.size()));
      count_here();
      return {};
    }
    return cursor_.refuse("this kind of group");
  }

  /// {n} {n,} {n,m}
  Result<void> counted() {
    if (!can_repeat_) return cursor_.refuse("this use of '{'");
    size_t end = 1;
    size_t commas = 0;
    for (char c = cursor_.peek(end); (c >= '0' && c <= '9') || c == ','; c = cursor_.peek(++end))
      commas += c == ',' ? 1 : 0;
    if (cursor_.peek(end) != '}' || commas > 1 || end == 1 || cursor_.peek(1) == ',') {
      return cursor_.refuse("this use of '{'");
    }
    const char after = cursor_.peek(end + 1);
    if (after == '?' || after == '+' || after == '*') return cursor_.refuse("'}' followed by another quantifier");
    syntax(cursor_.take(end + 1));
    count_here();
    can_repeat_ = false;
    return {};
  }

  Result<void> character() {
    const bool ignore_case = ignore_case_.back();
    if (cursor_.next_is("[")) {
      if (ignore_case) return cursor_.refuse("a class under (?i:");
      TRY_ASSIGN(CodepointSet characters, parse_class(cursor_));
      set(std::move(characters));
      return {};
    }
    if (cursor_.next_is(".")) {
      (void)cursor_.take(1);
      set(~CodepointSet::of('\n'));
      return {};
    }
    if (cursor_.next_is("\\")) {
      const char escaped = cursor_.peek(1);
      if (ignore_case && (escaped == 'p' || escaped == 'P')) return cursor_.refuse("a property under (?i:");
      TRY_ASSIGN(CharacterItem escape, parse_escape(cursor_));
      set(std::move(escape.set));
      return {};
    }
    const PatternCursor before = cursor_;
    TRY_ASSIGN(const uint32_t literal, cursor_.take_character());
    if (!ignore_case || (literal < 0x80 && !is_ascii_letter(literal))) {
      set(CodepointSet::of(literal));
      return {};
    }
    if (literal >= 0x80) return before.refuse("a character beyond ASCII under (?i:");
    if (dialect_ == RegexDialect::oniguruma && folds_to_one(previous_letter_, lower(literal))) {
      return before.refuse("letters under (?i: that fold to one character");
    }
    previous_letter_ = static_cast<char>(lower(literal));
    set(case_variants(literal));
    return {};
  }

  void find_run() {
    if (top_level_choice_ || out_.parts.size() < 2) return;
    const std::string& next = out_.parts[1].syntax;
    const bool greedy_run = next.starts_with("+") && !next.starts_with("++") && !next.starts_with("+?");
    out_.starts_with_run = out_.parts[0].syntax.empty() && out_.parts[0].set && greedy_run;
  }

  PatternCursor cursor_;
  RegexDialect dialect_;
  TranslatedPattern out_;
  std::vector<bool> ignore_case_ = {false};  // for each open group
  char previous_letter_ = '\0';              // the last one under (?i: in this alternative
  bool top_level_choice_ = false;
  unsigned since_callout_ = 0;  // characters since the last callout
  bool can_repeat_ = false;     // a quantifier may follow
};

}  // namespace

Result<TranslatedPattern> translate_pattern(std::string_view pattern, RegexDialect dialect) {
  return Translator(pattern, dialect).run();
}

}  // namespace dspack::runtime
