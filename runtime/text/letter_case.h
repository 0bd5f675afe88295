// Upper, lower and title case, and what is a digit, as Python's str has them: with characters that become several ("ß"
// is "SS"), titles of their own ("ǆ" is "ǅ"), and the sigma at the end of a word. Threads: thread-safe (pure
// functions). Errors: none; bytes that are no character stay as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dspack::runtime {

/// Bytes that the next ones hold at most for each byte of the text while they work: "ΐ" has two, and six in upper case,
/// and a text that grows doubles its room beside what it had.
inline constexpr uint64_t kMostCaseGrowth = 6;

[[nodiscard]] std::string upper_case(std::string_view text);
[[nodiscard]] std::string lower_case(std::string_view text);
/// str.swapcase
[[nodiscard]] std::string swapped_case(std::string_view text);
/// str.title: a word begins after whatever has no case.
[[nodiscard]] std::string title_case(std::string_view text);
/// str.capitalize: the first character in title case, the others in lower.
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
