// The noise by which tokens are drawn: one source for host and GPU, with the same bits.
//
// Every token arrives at a random time, exponentially distributed with the token's weight as its rate, and the first
// one is drawn, so each is drawn in proportion to its weight. (The logarithms of these times are what the Gumbel-max
// trick compares.) A token's random bits depend only on seed, position and token, not on the weights. So a drafter and
// the model have the same noise at a position, and two similar distributions draw the same token with probability at
// least (1 - d) / (1 + d), where d is their total variation distance; the upper bound is 1 - d (Daliri, Musco and
// Suresh, "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024, arXiv:2408.07978).
//
// The bits are Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): a bijection of
// counters for each key. The seed is the key; position and token form the counter, so no two positions of an answer,
// and no two answers with different seeds, share noise. The logarithm, like the weights (sample_weights.h), uses only
// operations that IEEE 754 rounds correctly. Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>

#include "kernels/sample_weights.h"

namespace dspack::kernels {

/// Determines the noise of all tokens at one position of a text.
struct NoiseKey {
  uint64_t seed = 0;
  uint64_t position = 0;  // number of tokens before it, including the prompt
  [[nodiscard]] bool operator==(const NoiseKey&) const = default;
};

/// 128 bits, lowest word first.
struct PhiloxWords {
  uint32_t words[4] = {};
};

/// Philox4x32-10.
DSPACK_HOST_AND_GPU inline PhiloxWords philox(const PhiloxWords& counter, uint64_t key) {
  PhiloxWords x = counter;
  auto low_key = static_cast<uint32_t>(key);
  auto high_key = static_cast<uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t{0xd2511f53U} * x.words[0];
    const uint64_t odd = uint64_t{0xcd9e8d57U} * x.words[2];
    x = {{static_cast<uint32_t>(odd >> 32U) ^ x.words[1] ^ low_key, static_cast<uint32_t>(odd),
          static_cast<uint32_t>(even >> 32U) ^ x.words[3] ^ high_key, static_cast<uint32_t>(even)}};
    low_key += 0x9e3779b9U;
    high_key += 0xbb67ae85U;
  }
  return x;
}

/// A token's 64 random bits.
DSPACK_HOST_AND_GPU inline uint64_t noise_of(const NoiseKey& key, uint32_t token) {
  const PhiloxWords x =
      philox({{token, 0, static_cast<uint32_t>(key.position), static_cast<uint32_t>(key.position >> 32U)}}, key.seed);
  return uint64_t{x.words[1]} << 32U | x.words[0];
}

/// Maps random bits to an exponentially distributed number with mean 1: -ln u, where u = (upper 63 bits + 1/2) / 2^63.
/// The relative error is about 2^-50, even for the smallest results.
DSPACK_HOST_AND_GPU inline double exponential_of(uint64_t bits) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  uint64_t u = bits | 1U;  // in units of 2^-64
  double halvings = 0;
  for (; u >> 63U == 0; u <<= 1U)
    halvings += 1;
  // -ln u = 2 artanh((1 - u) / (1 + u)), whose argument is at most 1/3: the series' remainder is below 2^-58.
  const double ratio = static_cast<double>(uint64_t{0} - u) / (0x1p64 + static_cast<double>(u));
  const double square = ratio * ratio;
  double sum = 0;
  for (int power = 33; power > 0; power -= 2)
    sum = sum * square + 1.0 / power;
  return halvings * kLn2 + 2 * ratio * sum;
}

/// A token and its arrival time.
struct Arrival {
  double time = 0x1p1000;  // never
  uint32_t token = UINT32_MAX;
};

/// Whether a arrives before b; of simultaneous arrivals the lower token is first.
DSPACK_HOST_AND_GPU inline bool is_before(const Arrival& a, const Arrival& b) {
  return a.time < b.time || (a.time == b.time && a.token < b.token);
}

/// The earlier of `first` and the arrival of a token of this weight.
DSPACK_HOST_AND_GPU inline Arrival first_with(const Arrival& first, const NoiseKey& key, uint32_t token,
                                              uint64_t weight) {
  if (weight == 0) return first;
  const uint64_t bits = noise_of(key, token);
  const auto rate = static_cast<double>(weight);
  // Skips the logarithm for most tokens, since -ln u >= 1 - u; the factor covers rounding.
  constexpr double kUnit = 0x1p-63 * (1 - 0x1p-40);
  const auto least = static_cast<int64_t>((uint64_t{0} - (bits | 1U)) >> 1U);  // 63 bits: int64_t converts directly
  if (static_cast<double>(least) * kUnit > first.time * rate) return first;
  const Arrival mine{.time = exponential_of(bits) / rate, .token = token};
  return is_before(mine, first) ? mine : first;
}

}  // namespace dspack::kernels
