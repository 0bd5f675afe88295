// Sizes: arithmetic on those that come from outside, in which overflow is a value and not a wrap, and numbers and sizes
// as text: "4096", "5GB", "4GiB".
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

/// The sum, or the largest number: a need that fits nowhere.
[[nodiscard]] constexpr uint64_t saturating_add(uint64_t a, uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<uint64_t>::max());
}

/// The product, or the largest number.
[[nodiscard]] constexpr uint64_t saturating_mul(uint64_t a, uint64_t b) {
  return checked_mul(a, b).value_or(std::numeric_limits<uint64_t>::max());
}

/// 4 EiB: no disk holds it. Sizes from outside are refused above it, and so are sums of them: what is smaller can be
/// added, and rounded up to pages, without a further check.
inline constexpr uint64_t kMostBytes = 1ULL << 62;

/// `value` rounded up to a multiple of `unit` (unit > 0). For sizes that are already known to be sane.
[[nodiscard]] constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// How many units hold `value` (unit > 0). For sizes of any origin: it cannot overflow.
[[nodiscard]] constexpr uint64_t ceil_div(uint64_t value, uint64_t unit) {
  return value / unit + (value % unit != 0 ? 1 : 0);
}

/// A cast between integers that reports instead of changing the value.
template <class To, class From>
[[nodiscard]] constexpr To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const To cast = static_cast<To>(value);
  DSPACK_CHECK(static_cast<From>(cast) == value && ((cast < To{}) == (value < From{})), "integer does not fit");
  return cast;
}

/// A whole number and nothing else.
[[nodiscard]] std::optional<uint64_t> parse_decimal(std::string_view text);

/// Bytes of a whole number, or of a number with up to six decimals and a unit above a byte, rounded down: B, KB, MB,
/// GB, TB (powers of 1000), KiB, MiB, GiB, TiB or K, M, G, T (of 1024), in upper or lower case.
[[nodiscard]] Result<uint64_t> parse_size(std::string_view text);

/// Where the exact number matters, too: "15.2 MB (15174734 bytes)", "512 bytes".
[[nodiscard]] std::string exact_size_words(uint64_t bytes);

/// For people, in powers of 1000 and three digits: "20.4 GB", "0 B".
[[nodiscard]] std::string size_words(uint64_t bytes);

}  // namespace dspack
