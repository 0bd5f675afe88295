// Upper, lower and title case, and digits, as in Python's str: including characters that become several ("ß" is "SS"),
// title forms ("ǆ" is "ǅ"), and the sigma at the end of a word.
// Threads: thread-safe (pure functions). Errors: none; bytes that are no character are kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dspack::runtime {

/// Most bytes that the functions below hold per byte of text: "ΐ" grows from two bytes to six in upper case, and a
/// string that grows allocates twice its size while it keeps the old memory.
inline constexpr uint64_t kMaxCaseGrowth = 6;

[[nodiscard]] std::string upper_case(std::string_view text);
[[nodiscard]] std::string lower_case(std::string_view text);
/// str.swapcase
[[nodiscard]] std::string swapped_case(std::string_view text);
/// str.title: a word begins after any character without case.
[[nodiscard]] std::string title_case(std::string_view text);
/// str.capitalize: the first character in title case, the others in lower case.
[[nodiscard]] std::string capitalized(std::string_view text);

// As Python's methods; false for an empty text.
[[nodiscard]] bool is_upper_case(std::string_view text);
[[nodiscard]] bool is_lower_case(std::string_view text);
[[nodiscard]] bool is_title_case(std::string_view text);

// str.isdecimal, str.isdigit and str.isnumeric of one character.
[[nodiscard]] bool is_decimal(uint32_t codepoint);
[[nodiscard]] bool is_digit(uint32_t codepoint);
[[nodiscard]] bool is_numeric(uint32_t codepoint);

}  // namespace dspack::runtime
