// Converts regular expressions of JSON Schema ("pattern": ECMA-262's dialect) to expressions over the JSON text of a
// string, as grammars need them: a pattern describes a string's value, where a quote is one character; in its text it
// is two. A character that JSON can write in several ways is written in one: as itself if JSON allows that, else by its
// short escape, else as \u00XX.
//
// Supported: literals, escapes, \d \w \s \D \W \S, \p{..} of general categories, classes, groups, | ? * + {m,n} and the
// anchors ^ $ at the beginning and end of an alternative. Look-around, back references and \b are refused by name; lazy
// quantifiers are read as greedy ones, which match the same whole texts.
// Threads: thread-safe (pure functions). Errors: unsupported (a construct, with its place), invalid (syntax, or more
// states than kMaxPatternStates).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "runtime/text/codepoint_set.h"

namespace dspack::runtime {

/// Approximate limit of states in a pattern's automaton: the time that a grammar takes is proportional to them.
inline constexpr size_t kMaxPatternStates = 400;

/// Bounds on a string's length, in characters of its value.
struct LengthBounds {
  uint64_t least = 0;
  std::optional<uint64_t> most = {};
};

/// The expression for the text between the quotes of all strings in which `pattern` is found, in xgrammar's dialect.
/// `length`: applied only if the pattern is one repeated character, `^[a-z]+$`, and the counts are small enough;
/// ignored for other patterns.
[[nodiscard]] Result<std::string> json_pattern(std::string_view pattern, const LengthBounds& length = {});

/// The expression for one character of a string's text, if it is in `set`. Surrogates are no characters. nullopt: the
/// set has no character.
[[nodiscard]] std::optional<std::string> json_character(const CodepointSet& set);

/// `single`, which a quantifier may follow, repeated `least` to `most` times; nullopt: without a maximum. (In xgrammar,
/// "?" after a repetition, as in "(?:a+)?", acts like "a*", and counts above 128 do not work everywhere.)
[[nodiscard]] std::string repeated_expression(std::string_view single, uint64_t least, std::optional<uint64_t> most);

}  // namespace dspack::runtime
