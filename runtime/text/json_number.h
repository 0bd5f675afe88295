// Numbers within bounds as expressions over their JSON text. Bounds are decimals of any size, as schemas write them;
// they are compared digit by digit, and nothing is rounded.
//
// Numbers with a bound are written without an exponent, and zero without a sign; without bounds all of JSON's forms
// are. Threads: thread-safe (pure functions). Errors: invalid (no number; more than kMostDigits written out; no number
// lies between the bounds).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::runtime {

/// Of a bound, written out. A bound that only more digits could reach stands for the farthest of so many.
inline constexpr size_t kMostDigits = 40;

struct NumberBound {
  std::string value;  // as JSON writes it
  bool is_exclusive = false;
};

struct NumberBounds {
  std::optional<NumberBound> least = {}, most = {};
  bool are_whole = false;
};

/// The expression for all numbers within the bounds; of xgrammar's dialect.
[[nodiscard]] Result<std::string> json_number(const NumberBounds& bounds);

/// Of two bounds, as JSON writes them: whether the first is the smaller one.
[[nodiscard]] Result<bool> is_smaller(std::string_view a, std::string_view b);
/// Of two numbers, as JSON writes them: whether the first is a whole number of times the second, which is not zero.
/// Errors: invalid (a divisor of more than 18 digits, written out beside the number).
[[nodiscard]] Result<bool> is_multiple(std::string_view value, std::string_view divisor);

}  // namespace dspack::runtime
