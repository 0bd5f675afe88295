// The word that was meant where another one was typed: for verbs, options and named values.
// Threads: thread-safe (pure functions). Time: bounded, whatever was typed; a long word is near to none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dspack::format {

/// Insertions, deletions, replacements and swaps of neighbours that lead from one word to the other. For words of at
/// most kLongestNearWord characters.
[[nodiscard]] size_t edit_distance(std::string_view a, std::string_view b);
inline constexpr size_t kLongestNearWord = 40;

/// The nearest of `words`, if it is so near that it was probably meant: one slip in three letters, and no more than
/// two; upper case counts as lower. Of two that are equally near the first. Where none is near, the one that begins so.
[[nodiscard]] std::optional<std::string> near_word(std::string_view typed, std::span<const std::string> words);

/// "; did you mean --temp?" for the end of a message; empty where no word is near.
[[nodiscard]] std::string did_you_mean(std::string_view typed, std::span<const std::string> words);

}  // namespace dspack::format
