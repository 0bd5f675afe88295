#include "runtime/text/grammar_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/text/json_number.h"
#include "runtime/text/json_pattern.h"

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

}  // namespace dspack::runtime
