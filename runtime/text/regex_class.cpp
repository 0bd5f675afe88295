#include "runtime/text/regex_class.h"

#include <fmt/format.h>

#include "runtime/text/codepoint_set.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr int kMaxDepth = 16;  // nesting of classes; bounds the recursion

CharacterItem single(uint32_t character) {
  return {CodepointSet::of(character), character};
}

CharacterItem either(bool negated, const CodepointSet& set) {
  return {negated ? ~set : set, std::nullopt};
}

/// \p{NAME} \P{NAME}
Result<CharacterItem> parse_property(PatternCursor& cursor) {
  constexpr size_t kLongest = 3;  // "Han"
  const bool negated = cursor.peek(1) == 'P';
  std::string name;
  size_t ahead = 3;
  while (name.size() <= kLongest && cursor.peek(ahead) != '}' && cursor.peek(ahead) != '\0')
    name.push_back(cursor.peek(ahead++));
  const auto set = unicode_property(name);
  if (cursor.peek(2) != '{' || cursor.peek(ahead) != '}' || !set) {
    return cursor.refuse("a property other than the general categories and Han");
  }
  (void)cursor.take(ahead + 1);
  return either(negated, *set);
}

class ClassParser {
 public:
  explicit ClassParser(PatternCursor& cursor) : cursor_(&cursor) {}

  Result<CodepointSet> parse(int depth) {
    if (depth == kMaxDepth) return cursor_->refuse("classes within classes beyond depth 16");
    (void)cursor_->take(1);
    const bool negated = cursor_->next_is("^");
    if (negated) (void)cursor_->take(1);
    TRY_ASSIGN(CodepointSet set, operand(depth));
    while (cursor_->next_is("&&")) {
      (void)cursor_->take(2);
      TRY_ASSIGN(const CodepointSet other, operand(depth));
      set = set & other;
    }
    (void)cursor_->take(1);
    return negated ? ~set : set;
  }

 private:
  /// Parses the members up to && or the closing bracket.
  Result<CodepointSet> operand(int depth) {
    CodepointSet set;
    bool empty = true;
    while (!cursor_->next_is("]") && !cursor_->next_is("&&")) {
      if (cursor_->done()) return cursor_->refuse("a class that is not closed");
      TRY_ASSIGN(const CodepointSet more, member(empty, depth));
      set = set | more;
      empty = false;
    }
    if (empty) return cursor_->refuse("an empty class");
    return set;
  }

  Result<CodepointSet> member(bool first, int depth) {
    if (cursor_->next_is("--") || cursor_->next_is("~~")) return cursor_->refuse("'--' or '~~' in a class");
    if (cursor_->next_is("[:")) return cursor_->refuse("'[:' in a class");
    if (cursor_->next_is("[")) return parse(depth + 1);
    // The meaning of a hyphen depends on both neighbours, and differs between dialects.
    if (cursor_->next_is("-") && !first && cursor_->peek(1) != ']')
      return cursor_->refuse("this use of '-' in a class");
    TRY_ASSIGN(const CharacterItem begin, item());
    const bool range = cursor_->next_is("-") && cursor_->peek(1) != ']';
    if (!range) return begin.set;
    if (!begin.character) return cursor_->refuse("a range that starts with a set");
    (void)cursor_->take(1);
    if (cursor_->next_is("[") || cursor_->next_is("&&") || cursor_->next_is("-")) {
      return cursor_->refuse("this end of a range");
    }
    TRY_ASSIGN(const CharacterItem end, item());
    if (!end.character) return cursor_->refuse("a range that ends with a set");
    if (*end.character < *begin.character) {
      return Error{ErrorKind::invalid, "regular expression: a range in a class goes backwards"};
    }
    return CodepointSet({{*begin.character, *end.character}});
  }

  Result<CharacterItem> item() {
    if (cursor_->next_is("\\")) return parse_escape(*cursor_);
    TRY_ASSIGN(const uint32_t character, cursor_->take_character());
    return single(character);
  }

  PatternCursor* cursor_;
};

}  // namespace

std::string_view PatternCursor::take(size_t bytes) {
  const std::string_view taken = pattern_.substr(at_, bytes);
  at_ += taken.size();
  return taken;
}

Result<uint32_t> PatternCursor::take_character() {
  const Utf8Unit unit = first_utf8_unit(pattern_.substr(at_));
  if (unit.kind != Utf8Unit::Kind::character) {
    return Error{ErrorKind::invalid, fmt::format("regular expression: broken UTF-8 at byte {}", at_)};
  }
  return decode_utf8_character(take(unit.bytes));
}

Error PatternCursor::refuse(std::string_view what) const {
  return {ErrorKind::unsupported, fmt::format("regular expression: {} at byte {}", what, at_)};
}

Result<CharacterItem> parse_escape(PatternCursor& cursor) {
  const char c = cursor.peek(1);
  if (c == 'p' || c == 'P') return parse_property(cursor);
  if (is_ascii_punctuation(c)) return single(static_cast<unsigned char>(cursor.take(2)[1]));
  constexpr std::string_view kControls = "rntf";
  constexpr std::string_view kMeanings = "\r\n\t\f";
  if (const size_t control = kControls.find(c); control != std::string_view::npos) {
    (void)cursor.take(2);
    return single(static_cast<unsigned char>(kMeanings[control]));
  }
  if (c == 's' || c == 'S') {
    (void)cursor.take(2);
    return either(c == 'S', white_space());
  }
  return cursor.refuse(fmt::format("'\\{}'", c >= ' ' && c <= '~' ? std::string(1, c) : "..."));
}

Result<CodepointSet> parse_class(PatternCursor& cursor) {
  return ClassParser(cursor).parse(0);
}

}  // namespace dspack::runtime
