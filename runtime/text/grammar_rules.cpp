#include "runtime/text/grammar_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "runtime/text/json_number.h"
#include "runtime/text/json_pattern.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr size_t kPieceBits = 5;
constexpr uint64_t kPiece = 1U << kPieceBits;  // characters

/// One character of a string's text. Escapes of surrogates are excluded: a single one is no character.
const std::string& text_character() {
  static const std::string expression = [] {
    const CodepointSet plain = ~CodepointSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
    return fmt::format("(?:{}|\\\\(?:[\"\\\\/bfnrt]|u(?:[0-9A-CEFa-cef][0-9A-Fa-f]{{3}}|[Dd][0-7][0-9A-Fa-f]{{2}})))",
                       *json_character(plain));
  }();
  return expression;
}

class ObjectWriter {
 public:
  ObjectWriter(GrammarRules& rules, const ObjectStyle& style, const ObjectMembers& members)
      : rules_(rules), style_(style), members_(members) {}

  /// The rule for what may follow `count` members if the listed ones from `at` on are left; nullopt: nothing. Without a
  /// maximum, counts above the minimum (and above one, after which commas follow) share a rule.
  std::optional<std::string> follow(size_t at, uint64_t count) {
    if (members_.most && count > *members_.most) return std::nullopt;
    if (!members_.most) count = std::min(count, std::max<uint64_t>(members_.least, 1));
    if (at == members_.listed.size()) return follow_free(count);
    const auto found = made_.find({at, count});
    if (found != made_.end()) return found->second;
    const auto& [rule, is_required] = members_.listed[at];
    std::vector<std::string> ways;
    if (const auto rest = follow(at + 1, count + 1))
      ways.push_back(fmt::format("{} {} {}", count == 0 ? "" : style_.comma, rule, *rest));
    if (!is_required) {
      if (const auto rest = follow(at + 1, count)) ways.push_back(*rest);
    }
    std::optional<std::string> made;
    if (!ways.empty()) made = rules_.add(fmt::format("{}", fmt::join(ways, " | ")));
    made_[{at, count}] = made;
    return made;
  }

 private:
  std::optional<std::string> follow_free(uint64_t count) {
    const std::string& end = count == 0 ? style_.end_of_none : style_.end;
    const uint64_t least = members_.least > count ? members_.least - count : 0;
    const auto most = members_.most ? std::optional(*members_.most - count) : std::nullopt;
    if (most && least > *most) return std::nullopt;
    if (!members_.free || most == 0U) return least == 0 ? std::optional(end) : std::nullopt;
    const std::string next = fmt::format("({} {})", style_.comma, *members_.free);
    if (count > 0) return fmt::format("{} {}", repeated(next, least, most), end);
    const auto more = most ? std::optional(*most - 1) : std::nullopt;
    const std::string some =
        fmt::format("{} {} {}", *members_.free, repeated(next, least == 0 ? 0 : least - 1, more), style_.end);
    return least == 0 ? fmt::format("({} | {})", end, some) : some;
  }

  GrammarRules& rules_;
  const ObjectStyle& style_;
  const ObjectMembers& members_;
  std::map<std::pair<size_t, uint64_t>, std::optional<std::string>> made_;
};

/// The rest of a name after `at` letters that these sorted names all share, such that it is none of the names.
std::string other_than(std::span<const std::u32string> names, size_t at) {
  static const std::string any = *json_character(~CodepointSet());
  CodepointSet next;
  std::vector<std::string> ways;
  const bool may_end = names.empty() || names.front().size() != at;
  for (size_t i = 0; i < names.size();) {
    if (names[i].size() == at) {
      ++i;
      continue;
    }
    const auto letter = static_cast<uint32_t>(names[i][at]);
    size_t end = i;
    while (end < names.size() && names[end].size() > at && names[end][at] == names[i][at])
      ++end;
    next = next | CodepointSet::of(letter);
    if (const auto text = json_character(CodepointSet::of(letter)))
      ways.push_back(*text + other_than(names.subspan(i, end - i), at + 1));
    i = end;
  }
  if (const auto others = json_character(~next)) ways.push_back(fmt::format("{}{}*", *others, any));
  return fmt::format("(?:{}){}", fmt::join(ways, "|"), may_end ? "{0,1}" : "");
}

}  // namespace

std::string literal(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

std::string regex(std::string_view expression) {
  return fmt::format("Regex({})", literal(expression));
}

std::string repeated(std::string_view part, uint64_t least, std::optional<uint64_t> most) {
  if (!most) return least == 0 ? fmt::format("{}*", part) : fmt::format("{}{{{},}}", part, least);
  return fmt::format("{}{{{},{}}}", part, least, *most);
}

std::string alternatives(const std::vector<std::string>& ways) {
  return ways.size() == 1 ? ways.front() : fmt::format("({})", fmt::join(ways, " | "));
}

void GrammarRules::add(std::string_view name, std::string_view body) {
  text_ += fmt::format("{} ::= {}\n", name, body);
}

std::string GrammarRules::add(std::string_view body) {
  std::string name = fmt::format("r{}", reserve(1));
  add(name, body);
  return name;
}

size_t GrammarRules::reserve(size_t count) {
  const size_t first = count_ + 1;
  count_ += count;
  return first;
}

std::string GrammarRules::once(const std::string& name, std::string_view body) {
  if (shared_.insert(name).second) add(name, body);
  return name;
}

std::string GrammarRules::space() {
  return once("ws", "[ \\t\\n]{0,12}");
}

std::string GrammarRules::comma() {
  return once("sep", fmt::format("{} \",\" {}", space(), space()));
}

std::string GrammarRules::string() {
  return once("str", regex(fmt::format("\"{}*\"", text_character())));
}

std::string GrammarRules::number() {
  return once("num", regex(json_number({}).value()));
}

std::string GrammarRules::any() {
  if (!shared_.contains("any")) {
    shared_.insert("any");
    const std::string pair = once("pair", fmt::format("{} {} \":\" {} any", string(), space(), space()));
    text_ += fmt::format("anyobj ::= \"{{\" {0} (\"}}\" | {1} ({2} {1})* {0} \"}}\")\n", space(), pair, comma());
    text_ += fmt::format("anyarr ::= \"[\" {0} (\"]\" | any ({1} any)* {0} \"]\")\n", space(), comma());
    text_ += fmt::format("any ::= anyobj | anyarr | {} | {} | \"true\" | \"false\" | \"null\"\n", string(), number());
  }
  return "any";
}

std::string GrammarRules::string(uint64_t least, std::optional<uint64_t> most) {
  if (!most && least == 0) return string();
  if (!most) {
    const std::string rest = once("rest", regex(fmt::format("{}*\"", text_character())));
    return add(fmt::format("\"\\\"\" {} {}", exactly(least), rest));
  }
  return add(fmt::format("\"\\\"\" {} ({}) \"\\\"\"", exactly(least), at_most(*most - least)));
}

/// Pieces of 1, 2, 4 ... characters, and shorter texts than such a piece.
std::string GrammarRules::piece(size_t bits) {
  return once(fmt::format("piece{}", bits), regex(fmt::format("{}{{{}}}", text_character(), 1U << bits)));
}

std::string GrammarRules::shorter(size_t bits) {
  return once(fmt::format("pieces{}", bits), regex(fmt::format("{}{{0,{}}}", text_character(), (1U << bits) - 1)));
}

std::string GrammarRules::exactly(uint64_t length) {
  std::string text;
  if (length >= kPiece) text = repeated(piece(kPieceBits), length / kPiece, length / kPiece) + " ";
  for (size_t bits = kPieceBits; bits-- > 0;)
    if (((length >> bits) & 1U) != 0) text += piece(bits) + " ";
  return text;
}

/// Up to `length` characters.
std::string GrammarRules::at_most(uint64_t length) {
  std::string ways = pieces(length);
  if (length >= kPiece) ways += fmt::format(" | {} ({})", piece(kPieceBits - 1), pieces(length - kPiece / 2));
  return ways;
}

std::string GrammarRules::pieces(uint64_t length) {
  const uint64_t whole = length / kPiece;
  std::vector<std::string> ways;
  if (whole > 0) ways.push_back(fmt::format("{} {}", repeated(piece(kPieceBits), 0, whole - 1), shorter(kPieceBits)));
  // After all whole pieces, bit by bit from the highest: fewer characters than the bit's value, or that many and then
  // the lower bits.
  std::string before = whole > 0 ? repeated(piece(kPieceBits), whole, whole) + " " : "";
  for (size_t bits = kPieceBits; bits-- > 0;) {
    if (((length >> bits) & 1U) == 0) continue;
    if (bits > 0) ways.push_back(before + shorter(bits));
    if (bits == 0) ways.push_back(before + literal(""));
    before += piece(bits) + " ";
  }
  ways.push_back(before + literal(""));
  return fmt::format("{}", fmt::join(ways, " | "));
}

ObjectStyle json_object_style(GrammarRules& rules) {
  const std::string space = rules.space();
  return {.begin = fmt::format("\"{{\" {}", space),
          .comma = rules.comma(),
          .end = fmt::format("{} \"}}\"", space),
          .end_of_none = "\"}\""};
}

Result<std::optional<std::string>> object_rule(GrammarRules& rules, const ObjectStyle& style,
                                               const ObjectMembers& members) {
  const uint64_t counted = members.most.value_or(std::max<uint64_t>(members.least, 1)) + 1;
  if (members.listed.size() * counted > kMaxObjectStates)
    return invalid("too many properties for bounds on how many there are");
  const auto body = ObjectWriter(rules, style, members).follow(0, 0);
  if (!body) return std::optional<std::string>();
  return std::optional(rules.add(fmt::format("{} {}", style.begin, *body)));
}

std::optional<std::string> other_names_rule(GrammarRules& rules, const std::vector<std::string>& names) {
  size_t letters = 0;
  std::vector<std::u32string> spelled;
  for (const std::string& name : names) {
    std::u32string all;
    for (std::string_view rest = name; !rest.empty();) {
      const Utf8Unit unit = first_utf8_unit(rest);
      all += static_cast<char32_t>(decode_utf8_character(rest.substr(0, unit.bytes)));
      rest.remove_prefix(unit.bytes);
    }
    letters += all.size();
    spelled.push_back(std::move(all));
  }
  if (letters > kMaxPatternStates) return std::nullopt;
  std::ranges::sort(spelled);
  return rules.add(regex(fmt::format("\"{}\"", other_than(spelled, 0))));
}

}  // namespace dspack::runtime
