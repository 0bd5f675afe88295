// Suggests a known word for a mistyped one: verbs, options and named values.
// Threads: thread-safe (pure functions). Time: bounded for any input; a word that is too long matches none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dspack::format {

/// Edit distance with insertions, deletions, replacements and swaps of neighbours. For words of at most
/// kLongestNearWord characters.
[[nodiscard]] size_t edit_distance(std::string_view a, std::string_view b);
inline constexpr size_t kLongestNearWord = 40;

/// The nearest of `words` if it was probably meant: at most two slips, and at most one per three letters; case is
/// ignored. Ties go to the first. If none is near, the only word that begins with `typed` (three characters or more).
[[nodiscard]] std::optional<std::string> near_word(std::string_view typed, std::span<const std::string> words);

/// "; did you mean --temp?" for the end of a message; empty if no word is near.
[[nodiscard]] std::string did_you_mean(std::string_view typed, std::span<const std::string> words);

}  // namespace dspack::format
