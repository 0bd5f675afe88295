// The noise by which tokens are drawn, for host and GPU alike, bit for bit.
//
// Every token arrives at a random time, exponentially distributed with the token's weight as its rate, and the first
// one is drawn: each with its share of all weights. (The logarithms of these times are what the Gumbel-max trick
// compares.) A token's random bits depend on seed, position and token alone, whatever the weights are, so whoever draws
// at a position has the same noise, a drafter as the model, and two similar distributions draw the same token nearly as
// often as two can: with probability (1 - d) / (1 + d) at least, d being their total variation distance; 1 - d is the
// most that is possible (Daliri, Musco and Suresh, "Coupling without Communication and Drafter-Invariant Speculative
// Decoding", 2024, arXiv:2408.07978).
//
// The bits are Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): a bijection of
// counters for each key. The seed is the key; position and token make up the counter, so that equal noise never serves
// two places of an answer, nor a place of two answers whose seeds differ. The logarithm is made of operations that
// IEEE 754 rounds correctly, like the weights (sample_weights.h). Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>

#include "kernels/sample_weights.h"

namespace dspack::kernels {

/// What the noise of all tokens at one place of a text depends on.
struct NoiseKey {
  uint64_t seed = 0;
  uint64_t position = 0;  // tokens before it, prompt included
  [[nodiscard]] bool operator==(const NoiseKey&) const = default;
};

/// 128 bits, the lowest first.
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

/// An exponentially distributed number of mean 1 by random bits: -ln u, u being their upper 63 and half a unit of the
/// last, over 2^63. To about 2^-50 of itself, however small it is.
DSPACK_HOST_AND_GPU inline double exponential_of(uint64_t bits) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  uint64_t u = bits | 1U;  // in units of 2^-64
  double halvings = 0;
  for (; u >> 63U == 0; u <<= 1U)
    halvings += 1;
  // -ln u = 2 artanh((1 - u) / (1 + u)), whose argument is at most 1/3: what the series leaves out is below 2^-58.
  const double ratio = static_cast<double>(uint64_t{0} - u) / (0x1p64 + static_cast<double>(u));
  const double square = ratio * ratio;
  double sum = 0;
  for (int power = 33; power > 0; power -= 2)
    sum = sum * square + 1.0 / power;
  return halvings * kLn2 + 2 * ratio * sum;
}

/// When a token arrives.
struct Arrival {
  double time = 0x1p1000;  // never
  uint32_t token = UINT32_MAX;
};

/// The lowest token of those that arrive together.
DSPACK_HOST_AND_GPU inline bool is_before(const Arrival& a, const Arrival& b) {
  return a.time < b.time || (a.time == b.time && a.token < b.token);
}

/// The first to arrive, of `first` and a token of this weight.
DSPACK_HOST_AND_GPU inline Arrival first_with(const Arrival& first, const NoiseKey& key, uint32_t token,
                                              uint64_t weight) {
  if (weight == 0) return first;
  const uint64_t bits = noise_of(key, token);
  const auto rate = static_cast<double>(weight);
  // Few are worth a logarithm, since -ln u >= 1 - u; the factor covers what is rounded.
  constexpr double kUnit = 0x1p-63 * (1 - 0x1p-40);
  const auto least = static_cast<int64_t>((uint64_t{0} - (bits | 1U)) >> 1U);  // 63 bits: what becomes FP64 at once
  if (static_cast<double>(least) * kUnit > first.time * rate) return first;
  const Arrival mine{.time = exponential_of(bits) / rate, .token = token};
  return is_before(mine, first) ? mine : first;
}

}  // namespace dspack::kernels
