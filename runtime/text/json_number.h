// Numbers within bounds, as expressions over their JSON text. Bounds are decimals of any size, as in schemas; they are
// compared digit by digit, without rounding.
//
// Bounded numbers are written without an exponent, and zero without a sign; unbounded ones in all of JSON's forms.
// Threads: thread-safe (pure functions). Errors: invalid (not a number; more than kMaxDigits written out; no number
// within the bounds).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::runtime {

/// Most digits of a bound when written out. A bound farther from zero than any number of this many digits is replaced
/// by the limit of these numbers.
inline constexpr size_t kMaxDigits = 40;

struct NumberBound {
  std::string value;  // as JSON writes it
  bool is_exclusive = false;
};

struct NumberBounds {
  std::optional<NumberBound> least = {}, most = {};
  bool are_whole = false;
};

/// The expression for all numbers within the bounds, in xgrammar's dialect.
[[nodiscard]] Result<std::string> json_number(const NumberBounds& bounds);

/// Whether `a` is less than `b`; both are numbers as JSON writes them.
[[nodiscard]] Result<bool> is_smaller(std::string_view a, std::string_view b);
/// Whether `value` is a whole multiple of `divisor`, which is not zero; both are numbers as JSON writes them. Errors:
/// invalid (a divisor of more than 18 digits at the scale of both numbers).
[[nodiscard]] Result<bool> is_multiple(std::string_view value, std::string_view divisor);

}  // namespace dspack::runtime
