// Weights of tokens for sampling, and the place of a share in a cumulative sum: one source for host and GPU, with the
// same bits.
//
// A weight is e^x rounded to a multiple of 2^-44 and counted in these units, where x is (logit - highest logit) /
// temperature. Sums of units are exact, so their order does not matter, and no choice depends on how a sum was rounded.
// A token below 2^-45 of the likeliest has weight 0 and is never drawn. e^x uses only operations that IEEE 754 rounds
// correctly, so every processor gets the same bits; the compilers are told not to contract them (no FMA). Threads: pure
// functions. Errors: none.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DSPACK_HOST_AND_GPU __host__ __device__
#else
#define DSPACK_HOST_AND_GPU
#endif

namespace dspack::kernels {

inline constexpr unsigned kUnitBits = 44;
inline constexpr uint64_t kHeaviest = uint64_t{1} << kUnitBits;  // e^0
/// The sum of this many weights stays below 2^64.
inline constexpr uint32_t kMaxSampled = (1U << (64U - kUnitBits)) - 1;

/// e^x in units. x <= 0, minus infinity included. A lower argument's weight exceeds a higher one's by at most one unit,
/// and only if the two are nearly equal.
DSPACK_HOST_AND_GPU inline uint64_t weight_of(double x) {
  constexpr double kLowest = -31.5;  // 2^-45.4
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42feep-1;  // 33 bits: a small multiple is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  if (!(x >= kLowest)) return 0;
  const int power = static_cast<int>(x * kLog2E - 0.5);  // the nearest, 0 to -45
  const double r = (x - power * kLn2High) - power * kLn2Low;
  // Taylor series for |r| <= ln 2 / 2; the remainder is below 2^-57.
  double sum = 1.0 / 6227020800;
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const auto mantissa = static_cast<uint64_t>(sum * 0x1p52);
  const auto shift = static_cast<unsigned>(52 - static_cast<int>(kUnitBits) - power);
  return (mantissa + (uint64_t{1} << (shift - 1))) >> shift;
}

/// The full 128-bit product of two words.
struct WideProduct {
  uint64_t high = 0;
  uint64_t low = 0;
};
DSPACK_HOST_AND_GPU inline WideProduct wide_product(uint64_t a, uint64_t b) {
  constexpr uint64_t kLow = 0xffffffffU;
  const uint64_t low = (a & kLow) * (b & kLow);
  const uint64_t middle = (a >> 32U) * (b & kLow) + (low >> 32U);
  const uint64_t other = (a & kLow) * (b >> 32U) + (middle & kLow);
  return {(a >> 32U) * (b >> 32U) + (middle >> 32U) + (other >> 32U), other << 32U | (low & kLow)};
}

/// The place in a cumulative sum that a share in [0, 1), to 53 bits, reaches: the token whose weight extends past this
/// place is the last of the smallest set with that share. A sum of exactly the share suffices.
DSPACK_HOST_AND_GPU inline uint64_t last_place_of(double share, uint64_t sum) {
  const WideProduct product = wide_product(static_cast<uint64_t>(share * 0x1p53) << 11U, sum);
  return product.high > 0 && product.low == 0 ? product.high - 1 : product.high;
}

/// A lower bound on the weights in the set that ends at `last_place`, and on every token likelier than one of the set:
/// the rest of `sum` is made up of the set's last token and those after it, at most `tokens`, each at most one unit
/// heavier than the last.
DSPACK_HOST_AND_GPU inline uint64_t least_in_set(uint64_t last_place, uint64_t sum, uint32_t tokens) {
  const uint64_t least = (sum - last_place - 1) / tokens;
  return least > 2 ? least - 1 : 1;
}

/// Whether min-p excludes a token, relative to the heaviest weight.
DSPACK_HOST_AND_GPU inline bool is_unlikely(uint64_t weight, double min_p) {
  return static_cast<double>(weight) < min_p * static_cast<double>(kHeaviest);
}

}  // namespace dspack::kernels
