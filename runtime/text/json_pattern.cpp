#include "runtime/text/json_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/text/regex_class.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr size_t kDeepest = 32;         // groups within groups
constexpr uint32_t kMaxCounted = 4096;  // in {m,n}
constexpr uint32_t kQuote = '"', kBackslash = '\\';

const CodepointSet& surrogates() {
  static const CodepointSet set({{0xD800, 0xDFFF}});
  return set;
}

/// The characters that "." matches: all but line terminators.
CodepointSet dot() {
  return ~CodepointSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

CodepointSet digits() {
  return CodepointSet({{'0', '9'}});
}

CodepointSet word() {
  return CodepointSet({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
}

/// ECMA-262's WhiteSpace and LineTerminator.
CodepointSet space() {
  return CodepointSet({{0x09, 0x0D},
                       {0x20, 0x20},
                       {0xA0, 0xA0},
                       {0x1680, 0x1680},
                       {0x2000, 0x200A},
                       {0x2028, 0x2029},
                       {0x202F, 0x202F},
                       {0x205F, 0x205F},
                       {0x3000, 0x3000},
                       {0xFEFF, 0xFEFF}});
}

/// A part of a pattern as an expression over text.
struct Subpattern {
  std::string text;       // an expression that can be followed by another
  bool is_single = true;  // a quantifier may follow it directly
  bool is_character = false;
  bool is_never = false;  // matches no string
  bool opens = false;     // begins with ^
  bool closes = false;    // ends with $
  size_t states = 0;
  std::optional<LengthBounds> counts = {};  // set for one repeated character
  std::string character = {};               // the expression for that character
};

std::string grouped(const Subpattern& part) {
  return part.is_single ? part.text : fmt::format("(?:{})", part.text);
}

class PatternReader {
 public:
  PatternReader(std::string_view pattern, const LengthBounds& length) : cursor_(pattern), length_(length) {}

  /// The expression for every string in which the pattern is found: without an anchor, any text may come before or
  /// after.
  Result<std::string> read() {
    TRY_ASSIGN(const std::vector<Subpattern> alternatives, read_alternatives(0));
    if (!cursor_.done()) return cursor_.refuse("\")\" without \"(\"");
    if (alternatives.size() == 1) {
      if (const auto counted = within_length(alternatives.front())) return *counted;
    }
    const std::string any = fmt::format("(?:{})*", *json_character(~CodepointSet()));
    std::string text;
    size_t states = 0;
    for (const Subpattern& each : alternatives) {
      if (each.is_never) continue;
      states += each.states;
      if (!text.empty()) text += '|';
      text += (each.opens ? "" : any) + each.text + (each.closes ? "" : any);
    }
    if (states > kMaxPatternStates) {
      return invalid(fmt::format("a pattern of about {} states, more than {}", states, kMaxPatternStates));
    }
    if (text.empty() && std::ranges::all_of(alternatives, &Subpattern::is_never)) {
      return invalid("a pattern that no string has");
    }
    return alternatives.size() == 1 ? text : fmt::format("(?:{})", text);
  }

 private:
  /// One character, repeated as often as both the pattern and the length allow; nullopt: another pattern, or too many
  /// repetitions.
  [[nodiscard]] std::optional<std::string> within_length(const Subpattern& whole) const {
    if (!whole.opens || !whole.closes || !whole.counts) return std::nullopt;
    const uint64_t least = std::max(whole.counts->least, length_.least);
    auto most = whole.counts->most;
    if (length_.most) most = std::min(most.value_or(*length_.most), *length_.most);
    if (most.value_or(least) > kMaxPatternStates || most.value_or(least) < least) return std::nullopt;
    return repeated_expression(whole.character, least, most);
  }

  /// Reads up to a closing parenthesis or the end.
  Result<std::vector<Subpattern>> read_alternatives(size_t depth) {
    if (depth > kDeepest) return cursor_.refuse("groups within groups beyond a depth of 32");
    std::vector<Subpattern> alternatives;
    do {
      if (!alternatives.empty()) (void)cursor_.take(1);
      TRY_ASSIGN(Subpattern each, read_sequence(depth));
      alternatives.push_back(std::move(each));
    } while (cursor_.next_is("|"));
    return alternatives;
  }

  Result<Subpattern> read_sequence(size_t depth) {
    Subpattern whole;
    size_t parts = 0;
    while (!cursor_.done() && !cursor_.next_is("|") && !cursor_.next_is(")")) {
      if (cursor_.next_is("^")) {
        if (parts > 0) return cursor_.refuse("\"^\" after something");
        (void)cursor_.take(1);
        whole.opens = true;
        continue;
      }
      if (whole.closes) return cursor_.refuse("something after \"$\"");
      if (cursor_.next_is("$")) {
        (void)cursor_.take(1);
        whole.closes = true;
        continue;
      }
      TRY_ASSIGN(Subpattern next, read_item(depth));
      if (next.opens && parts > 0) return cursor_.refuse("\"^\" after something");
      whole.opens |= next.opens;
      whole.closes |= next.closes;
      whole.is_never |= next.is_never;
      whole.states += next.states;
      if (whole.states > kMaxPatternStates) {
        return invalid(fmt::format("a pattern of more than about {} states", kMaxPatternStates));
      }
      whole.text += next.text;
      whole.counts = parts == 0 ? next.counts : std::nullopt;
      whole.character = std::move(next.character);
      ++parts;
    }
    whole.is_single = false;
    return whole;
  }

  Result<Subpattern> read_item(size_t depth) {
    TRY_ASSIGN(Subpattern item, read_atom(depth));
    const auto counts = read_quantifier();
    if (!counts) return counts.error();
    if (!*counts) return item;
    if (item.opens || item.closes) return cursor_.refuse("an anchor that is repeated");
    const auto [least, most] = **counts;
    Subpattern repeated{.text = {}, .is_single = false};
    repeated.states = item.states * std::max<size_t>(1, most.value_or(least + 1));
    if (item.is_never) {
      repeated.is_never = least > 0;
      return repeated;
    }
    if (item.text.empty() || most == 0U) return repeated;
    if (repeated.states > kMaxPatternStates) {
      return invalid(fmt::format("a pattern of more than about {} states", kMaxPatternStates));
    }
    if (item.is_character) {
      repeated.counts = LengthBounds{.least = least, .most = most};
      repeated.character = item.text;
    }
    repeated.text = repeated_expression(grouped(item), least, most);
    return repeated;
  }

  Result<std::optional<std::pair<uint32_t, std::optional<uint32_t>>>> read_quantifier() {
    using Counts = std::pair<uint32_t, std::optional<uint32_t>>;
    std::optional<Counts> counts;
    switch (cursor_.peek()) {
      case '*': counts = Counts(0, std::nullopt); break;
      case '+': counts = Counts(1, std::nullopt); break;
      case '?': counts = Counts(0, 1U); break;
      default: break;
    }
    if (counts) {
      (void)cursor_.take(1);
    } else if (cursor_.next_is("{")) {
      TRY_ASSIGN(counts, read_counts());
    }
    if (!counts) return counts;
    if (cursor_.next_is("?")) (void)cursor_.take(1);  // lazy: matches the same texts
    if (cursor_.next_is("*") || cursor_.next_is("+") || cursor_.next_is("?") || cursor_.next_is("{"))
      return cursor_.refuse("a quantifier of a quantifier");
    return counts;
  }

  /// "{2}", "{2,}", "{2,7}".
  Result<std::optional<std::pair<uint32_t, std::optional<uint32_t>>>> read_counts() {
    (void)cursor_.take(1);
    TRY_ASSIGN(const auto least, read_number());
    if (!least) return cursor_.refuse("a \"{\" that is no quantifier");
    std::optional<uint32_t> most = least;
    if (cursor_.next_is(",")) {
      (void)cursor_.take(1);
      TRY_ASSIGN(most, read_number());
    }
    if (!cursor_.next_is("}")) return cursor_.refuse("a \"{\" that is no quantifier");
    (void)cursor_.take(1);
    if (most && *most < *least) return invalid("a pattern's quantifier goes backwards");
    return std::optional(std::pair(*least, most));
  }

  Result<std::optional<uint32_t>> read_number() {
    std::optional<uint32_t> number;
    while (cursor_.peek() >= '0' && cursor_.peek() <= '9') {
      number = number.value_or(0) * 10 + static_cast<uint32_t>(cursor_.take(1)[0] - '0');
      if (*number > kMaxCounted) {
        return invalid(fmt::format("a pattern that repeats more than {} times", kMaxCounted));
      }
    }
    return number;
  }

  Result<Subpattern> read_atom(size_t depth) {
    if (cursor_.next_is("(")) return read_group(depth);
    if (cursor_.next_is("[")) {
      TRY_ASSIGN(const CodepointSet set, read_class());
      return one_of(set);
    }
    if (cursor_.next_is(".")) {
      (void)cursor_.take(1);
      return one_of(dot());
    }
    if (cursor_.next_is("\\")) {
      TRY_ASSIGN(const CharacterItem item, read_escape(false));
      return one_of(item.set);
    }
    for (const std::string_view sign : {"*", "+", "?", "{"})
      if (cursor_.next_is(sign)) return cursor_.refuse("a quantifier of nothing");
    TRY_ASSIGN(const uint32_t character, cursor_.take_character());
    return one_of(CodepointSet::of(character));
  }

  Result<Subpattern> read_group(size_t depth) {
    (void)cursor_.take(1);
    if (cursor_.next_is("?:")) {
      (void)cursor_.take(2);
    } else if (cursor_.next_is("?<") && cursor_.peek(2) != '=' && cursor_.peek(2) != '!') {
      while (!cursor_.done() && !cursor_.next_is(">"))
        (void)cursor_.take(1);
      (void)cursor_.take(1);
    } else if (cursor_.next_is("?")) {
      return cursor_.refuse("look-around or a flag, which no grammar can hold an answer to,");
    }
    TRY_ASSIGN(const std::vector<Subpattern> alternatives, read_alternatives(depth + 1));
    if (!cursor_.next_is(")")) return cursor_.refuse("a group that is not closed");
    (void)cursor_.take(1);
    Subpattern group{
        .text = {}, .is_never = true, .opens = alternatives.front().opens, .closes = alternatives.front().closes};
    for (const Subpattern& each : alternatives) {
      if (each.opens != group.opens || each.closes != group.closes) {
        return cursor_.refuse("a group of which some alternatives are anchored, and others not,");
      }
      group.states += each.states;
      if (each.is_never) continue;
      if (!group.is_never) group.text += '|';
      group.text += each.text;
      group.is_never = false;
    }
    if (!group.text.empty()) group.text = fmt::format("(?:{})", group.text);
    return group;
  }

  static Result<Subpattern> one_of(const CodepointSet& set) {
    auto text = json_character(set);
    if (!text) return Subpattern{.text = {}, .is_never = true};
    return Subpattern{.text = *std::move(text), .is_character = true, .states = 1};
  }

  /// "[a-z\\d]" as in ECMA-262: "[" and "&&" are literal, and so is a hyphen at an end or beside a set.
  Result<CodepointSet> read_class() {
    (void)cursor_.take(1);
    const bool is_negated = cursor_.next_is("^");
    if (is_negated) (void)cursor_.take(1);
    CodepointSet set;
    while (!cursor_.next_is("]")) {
      if (cursor_.done()) return cursor_.refuse("a class that is not closed");
      TRY_ASSIGN(const CharacterItem first, read_member());
      if (!cursor_.next_is("-") || cursor_.peek(1) == ']') {
        set = set | first.set;
        continue;
      }
      (void)cursor_.take(1);
      if (cursor_.done()) return cursor_.refuse("a class that is not closed");
      TRY_ASSIGN(const CharacterItem last, read_member());
      if (!first.character || !last.character) {
        set = set | first.set | last.set | CodepointSet::of('-');
        continue;
      }
      if (*last.character < *first.character) return invalid("a pattern's class goes backwards");
      set = set | CodepointSet({{*first.character, *last.character}});
    }
    (void)cursor_.take(1);
    return is_negated ? ~set : set;
  }

  Result<CharacterItem> read_member() {
    if (cursor_.next_is("\\")) return read_escape(true);
    TRY_ASSIGN(const uint32_t character, cursor_.take_character());
    return CharacterItem{CodepointSet::of(character), character};
  }

  Result<CharacterItem> read_escape(bool is_in_class) {
    const auto single = [this](size_t bytes, uint32_t character) {
      (void)cursor_.take(bytes);
      return CharacterItem{CodepointSet::of(character), character};
    };
    const auto set = [this](const CodepointSet& members, bool is_negated) {
      (void)cursor_.take(2);
      return CharacterItem{is_negated ? ~members : members, std::nullopt};
    };
    const char c = cursor_.peek(1);
    switch (c) {
      case 'd':
      case 'D': return set(digits(), c == 'D');
      case 'w':
      case 'W': return set(word(), c == 'W');
      case 's':
      case 'S': return set(space(), c == 'S');
      case 'p':
      case 'P': return parse_escape(cursor_);
      case 'n': return single(2, '\n');
      case 'r': return single(2, '\r');
      case 't': return single(2, '\t');
      case 'f': return single(2, '\f');
      case 'v': return single(2, '\v');
      case 'x': return read_hex(2, 2);
      case 'u': return cursor_.peek(2) == '{' ? read_braced_hex() : read_hex(2, 4);
      case '0':
        if (cursor_.peek(2) < '0' || cursor_.peek(2) > '9') return single(2, 0);
        break;
      case 'b':
        if (is_in_class) return single(2, '\b');
        break;
      default: break;
    }
    if (is_ascii_punctuation(c)) return single(2, static_cast<unsigned char>(c));
    return cursor_.refuse(fmt::format("\"\\{}\"", c >= ' ' && c <= '~' ? std::string(1, c) : "..."));
  }

  static std::optional<uint32_t> hex_value(char c) {
    if (c >= '0' && c <= '9') return static_cast<uint32_t>(c - '0');
    const char lower = static_cast<char>(c | 0x20);
    if (lower >= 'a' && lower <= 'f') return static_cast<uint32_t>(lower - 'a' + 10);
    return std::nullopt;
  }

  Result<CharacterItem> read_hex(size_t begin, size_t count) {
    uint32_t value = 0;
    for (size_t at = begin; at < begin + count; ++at) {
      const auto digit = hex_value(cursor_.peek(at));
      if (!digit) return cursor_.refuse("an escape that lacks digits");
      value = value * 16 + *digit;
    }
    (void)cursor_.take(begin + count);
    return CharacterItem{CodepointSet::of(value), value};
  }

  Result<CharacterItem> read_braced_hex() {
    uint32_t value = 0;
    size_t at = 3;
    for (auto digit = hex_value(cursor_.peek(at)); digit && value <= kLastCodepoint;
         digit = hex_value(cursor_.peek(at))) {
      value = value * 16 + *digit;
      ++at;
    }
    if (at == 3 || cursor_.peek(at) != '}' || value > kLastCodepoint)
      return cursor_.refuse("an escape that lacks digits");
    (void)cursor_.take(at + 1);
    return CharacterItem{CodepointSet::of(value), value};
  }

  PatternCursor cursor_;
  LengthBounds length_;
};

}  // namespace

std::optional<std::string> json_character(const CodepointSet& set) {
  constexpr std::array<std::pair<uint32_t, char>, 7> kShort = {
      {{kQuote, '"'}, {kBackslash, '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}}};
  static const CodepointSet plain =
      ~(CodepointSet({{0, 0x1F}, {kQuote, kQuote}, {kBackslash, kBackslash}}) | surrogates());
  std::vector<std::string> ways;
  // One class per UTF-8 length: a range over several would also accept overlong spellings of the first characters.
  for (const CodepointRange& length : {CodepointRange{0, 0x7F}, CodepointRange{0x80, 0x7FF},
                                       CodepointRange{0x800, 0xFFFF}, CodepointRange{0x10000, kLastCodepoint}}) {
    std::string members;
    const CodepointSet itself = set & plain & CodepointSet({length});
    for (const auto& [first, last] : itself.ranges())
      members +=
          first == last ? fmt::format("\\u{{{:x}}}", first) : fmt::format("\\u{{{:x}}}-\\u{{{:x}}}", first, last);
    if (!members.empty()) ways.push_back(fmt::format("[{}]", members));
  }
  std::string letters;
  for (const auto& [character, letter] : kShort) {
    if (!set.contains(character)) continue;
    if (letter == '"' || letter == '\\') letters += '\\';
    letters += letter;
  }
  if (!letters.empty()) ways.push_back(fmt::format("\\\\[{}]", letters));
  for (const uint32_t high : {0U, 1U}) {
    std::string low;
    for (uint32_t character = high * 16; character < high * 16 + 16; ++character) {
      const bool is_short = std::ranges::find(kShort, character, &std::pair<uint32_t, char>::first) != kShort.end();
      if (set.contains(character) && !is_short) low += fmt::format("{:x}", character % 16);
    }
    if (!low.empty()) ways.push_back(fmt::format("\\\\u00{}[{}]", high, low));
  }
  if (ways.empty()) return std::nullopt;
  if (ways.size() == 1 && ways.front().front() == '[') return std::move(ways.front());  // needs no group
  std::string text;
  for (const std::string& way : ways)
    text += (text.empty() ? "" : "|") + way;
  return fmt::format("(?:{})", text);
}

std::string repeated_expression(std::string_view single, uint64_t least, std::optional<uint64_t> most) {
  constexpr uint64_t kMaxAtOnce = 100;
  std::string text;
  const auto add = [&](uint64_t from, uint64_t to) { text += fmt::format("{}{{{},{}}}", single, from, to); };
  for (uint64_t left = least; left > 0; left -= std::min(left, kMaxAtOnce))
    add(std::min(left, kMaxAtOnce), std::min(left, kMaxAtOnce));
  if (!most) return text + fmt::format("{}*", single);
  for (uint64_t left = *most - least; left > 0; left -= std::min(left, kMaxAtOnce))
    add(0, std::min(left, kMaxAtOnce));
  return text;
}

Result<std::string> json_pattern(std::string_view pattern, const LengthBounds& length) {
  return PatternReader(pattern, length).read();
}

}  // namespace dspack::runtime
