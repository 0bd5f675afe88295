// Sizes: overflow-checked arithmetic for sizes from outside, and numbers and sizes as text: "4096", "5GB", "4GiB".
// Threads: thread-safe (pure functions). Errors: invalid, with what is allowed.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "format/base/check.h"
#include "format/base/result.h"

namespace dspack {

[[nodiscard]] constexpr std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  if (a > std::numeric_limits<uint64_t>::max() - b) return std::nullopt;
  return a + b;
}

[[nodiscard]] constexpr std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  if (b != 0 && a > std::numeric_limits<uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

/// The sum, or on overflow the largest number, which fits nowhere.
[[nodiscard]] constexpr uint64_t saturating_add(uint64_t a, uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<uint64_t>::max());
}

/// The product, or on overflow the largest number.
[[nodiscard]] constexpr uint64_t saturating_mul(uint64_t a, uint64_t b) {
  return checked_mul(a, b).value_or(std::numeric_limits<uint64_t>::max());
}

/// 4 EiB: no disk holds it. Sizes from outside, and their sums, are refused above it; smaller sizes can be added, and
/// rounded up to pages, without a check for overflow.
inline constexpr uint64_t kMaxSizeBytes = 1ULL << 62;

/// `value` rounded up to a multiple of `unit` (unit > 0). Only for sizes already known to be sane: it may overflow.
[[nodiscard]] constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The number of units that hold `value` (unit > 0). For sizes of any origin: it cannot overflow.
[[nodiscard]] constexpr uint64_t ceil_div(uint64_t value, uint64_t unit) {
  return value / unit + (value % unit != 0 ? 1 : 0);
}

/// An integer cast that aborts (DSPACK_CHECK) if it would change the value.
template <class To, class From>
[[nodiscard]] constexpr To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const To cast = static_cast<To>(value);
  DSPACK_CHECK(static_cast<From>(cast) == value && ((cast < To{}) == (value < From{})), "integer does not fit");
  return cast;
}

/// Parses a whole decimal number; nullopt if `text` is anything else.
[[nodiscard]] std::optional<uint64_t> parse_decimal(std::string_view text);

/// Parses a size into bytes: a whole number, or a number with a unit, in upper or lower case: B, KB, MB, GB, TB (powers
/// of 1000), KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024). With a unit above a byte it may have up to six
/// decimals; the result is rounded down.
[[nodiscard]] Result<uint64_t> parse_size(std::string_view text);

/// Rounded and exact: "15.2 MB (15174734 bytes)", "512 bytes".
[[nodiscard]] std::string exact_size_words(uint64_t bytes);

/// Three digits in powers of 1000: "20.4 GB", "0 B".
[[nodiscard]] std::string size_words(uint64_t bytes);

}  // namespace dspack
