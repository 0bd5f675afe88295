// The regular expressions of JSON Schema ("pattern": ECMA-262's dialect) as expressions over the JSON text of a string,
// as grammars need them: a pattern speaks of a string's value, in which a quote is one character, and its text writes
// it as two. What the text can write in several ways is written in one: as itself where JSON allows that, else by its
// short escape, else as \u00XX.
//
// Understood: literals, escapes, \d \w \s \D \W \S, \p{..} of general categories, classes, groups, | ? * + {m,n} and
// the anchors ^ $ where an alternative begins and ends. Look-around, back references, \b and lazy quantifiers'
// difference (there is none for a whole text) are not: the first three are refused by name. Threads: thread-safe (pure
// functions). Errors: unsupported (a construct, with its place), invalid (syntax, or more states than
// kMostPatternStates).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "runtime/text/codepoint_set.h"

namespace dspack::runtime {

/// Of the automaton that a pattern becomes, about: the time that a grammar takes is in proportion to them.
inline constexpr size_t kMostPatternStates = 400;

/// Of strings, in characters of their values.
struct LengthBounds {
  uint64_t least = 0;
  std::optional<uint64_t> most = {};
};

/// The expression for the text between the quotes of all strings in which `pattern` is found; of xgrammar's dialect.
/// `length`: obeyed where the pattern is one character many times, `^[a-z]+$`, and few enough of them; no part of other
/// expressions.
[[nodiscard]] Result<std::string> json_pattern(std::string_view pattern, const LengthBounds& length = {});

/// The expression for one character of a string's text, of those in `set`; never empty: a set without characters gives
/// nullopt. Surrogates are no characters.
[[nodiscard]] std::optional<std::string> json_character(const CodepointSet& set);

/// `single`, which a quantifier may follow, `least` to `most` times; nullopt: any number of times. (The library's own
/// "?" of what may go on, as of "(?:a+)?", is that of "a*" as well, and it cannot count above 128 everywhere.)
[[nodiscard]] std::string repeated_expression(std::string_view single, uint64_t least, std::optional<uint64_t> most);

}  // namespace dspack::runtime
