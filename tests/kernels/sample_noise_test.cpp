// The noise that tokens are drawn with: the published numbers, and no likeness between neighbouring seeds, positions
// and tokens.
#include "kernels/sample_noise.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/sampling.h"
#include "tests/kernels/lab.h"

namespace dspack::test::sample_noise_test {
namespace {

using kernels::NoiseKey;

double share(uint64_t bits) {
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

/// Of n numbers in [0, 1) in 64 classes, in standard deviations from what is expected.
double unevenness(const std::vector<double>& numbers) {
  constexpr size_t kClasses = 64;
  std::vector<double> counts(kClasses);
  for (const double number : numbers)
    counts[static_cast<size_t>(number * kClasses)] += 1;
  const double mean = static_cast<double>(numbers.size()) / kClasses;
  double chi_square = 0;
  for (const double count : counts)
    chi_square += (count - mean) * (count - mean) / mean;
  return (chi_square - (kClasses - 1)) / std::sqrt(2.0 * (kClasses - 1));
}

TEST_CASE("noise: Philox4x32-10 gives the numbers that its authors publish") {
  const auto words = [](const kernels::PhiloxWords& counter, uint64_t key) {
    const kernels::PhiloxWords x = kernels::philox(counter, key);
    return std::vector<uint32_t>(std::begin(x.words), std::end(x.words));
  };
  // Random123, tests/kat_vectors.
  using Words = std::vector<uint32_t>;
  CHECK(words({{0, 0, 0, 0}}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words({{UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}}, UINT64_MAX) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("noise: of tokens, of positions and of seeds that follow one another it is even") {
  for (const uint64_t base : {uint64_t{0}, uint64_t{1} << 40U, UINT64_MAX - 40'000}) {
    CAPTURE(base);
    std::vector<double> of_tokens, of_positions, of_seeds, of_both;
    for (uint32_t i = 0; i < 40'000; ++i) {
      of_tokens.push_back(share(kernels::noise_of({.seed = base, .position = 7}, i)));
      of_positions.push_back(share(kernels::noise_of({.seed = 3, .position = base + i}, 11)));
      of_seeds.push_back(share(kernels::noise_of({.seed = base + i, .position = 5}, 2)));
      of_both.push_back(share(kernels::noise_of({.seed = base + i, .position = 40'000 - i}, 2)));
    }
    // Nothing is random here, so these either hold or do not: five standard deviations would be much.
    for (const auto* numbers : {&of_tokens, &of_positions, &of_seeds, &of_both})
      CHECK(std::abs(unevenness(*numbers)) < 5);
  }
}

TEST_CASE("noise: neighbours share nothing: seeds, positions, and a seed and the position before") {
  constexpr int kPairs = 20'000;
  const auto check_apart = [](uint64_t seeds, uint64_t positions, uint32_t tokens) {
    CAPTURE(seeds);
    CAPTURE(positions);
    CAPTURE(tokens);
    double product = 0;
    double bits = 0;
    int equal = 0;
    for (uint32_t i = 0; i < kPairs; ++i) {
      const NoiseKey key{.seed = i / 100, .position = 1000 + i % 100};
      const uint64_t one = kernels::noise_of(key, i);
      const uint64_t other =
          kernels::noise_of({.seed = key.seed + seeds, .position = key.position + positions}, i + tokens);
      equal += one == other ? 1 : 0;
      product += (share(one) - 0.5) * (share(other) - 0.5) * 12 / kPairs;
      bits += static_cast<double>(std::popcount(one ^ other)) / kPairs;
    }
    CHECK(equal == 0);
    CHECK(std::abs(product) < 5 / std::sqrt(kPairs));        // the correlation, in standard deviations
    CHECK(std::abs(bits - 32) < 5 * 4 / std::sqrt(kPairs));  // of 64 bits half differ, 4 being the deviation
  };
  check_apart(1, 0, 0);
  check_apart(0, 1, 0);
  check_apart(1, UINT64_MAX, 0);  // what a sum of seed and position would confuse
  check_apart(UINT64_MAX, 1, 0);
  check_apart(0, 1, UINT32_MAX);
  check_apart(uint64_t{1} << 32U, 0, 0);
  check_apart(0, uint64_t{1} << 32U, 0);
}

TEST_CASE("noise: times are -ln u, from the smallest to the largest u") {
  const auto expect = [](uint64_t bits) {
    const auto u = static_cast<long double>(bits | 1U) * 0x1p-64L;
    const auto one_less = static_cast<long double>(uint64_t{0} - (bits | 1U)) * 0x1p-64L;
    return static_cast<double>(u < 0.5L ? -std::log(u) : -std::log1p(-one_less));
  };
  Random random;
  CAPTURE(random.seed());
  std::vector<uint64_t> all = {0,
                               1,
                               2,
                               3,
                               UINT64_MAX,
                               UINT64_MAX - 1,
                               UINT64_MAX - 2,
                               uint64_t{1} << 63U,
                               (uint64_t{1} << 63U) - 1,
                               (uint64_t{1} << 63U) + 2};
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t any = uint64_t{random.below(UINT32_MAX)} << 32U | random.below(UINT32_MAX);
    all.push_back(any >> random.below(64));
    all.push_back(~(any >> random.below(64)));
  }
  double worst = 0;
  for (const uint64_t bits : all) {
    const double time = kernels::exponential_of(bits);
    CHECK(time > 0);
    worst = std::max(worst, std::abs(time / expect(bits) - 1));
  }
  CHECK(worst < 0x1p-50);
}

TEST_CASE("noise: tokens are as frequent as their weights, also far below the likeliest") {
  constexpr uint32_t kDraws = 200'000;
  std::vector<kernels::LikelyToken> tokens;
  for (const uint32_t units : {7U, 5U, 0U, 3U, 1U})
    tokens.push_back({.token = static_cast<uint32_t>(tokens.size()), .weight = uint64_t{units} << 40U});
  tokens.push_back({.token = 5, .weight = kernels::kHeaviest >> 16U});  // one in 65,536 and more
  double sum = 0;
  for (const auto& token : tokens)
    sum += static_cast<double>(token.weight);
  std::vector<double> counts(tokens.size());
  for (uint32_t i = 0; i < kDraws; ++i)
    counts[kernels::draw_token(tokens, {.seed = i / 100, .position = i % 100})] += 1;
  for (const auto& token : tokens) {
    CAPTURE(token.token);
    const double mean = kDraws * static_cast<double>(token.weight) / sum;
    CHECK(std::abs(counts[token.token] - mean) <= 5 * std::sqrt(mean));
  }
}

TEST_CASE("noise: two distributions draw the same token as often as the bound says") {
  constexpr uint32_t kDraws = 20'000;
  Random random;
  CAPTURE(random.seed());
  for (const double apart : {0.2, 0.7, 2.0}) {
    CAPTURE(apart);
    std::vector<double> p, q;
    for (int i = 0; i < 300; ++i) {
      p.push_back(1.7 * random.normal());
      q.push_back(p.back() + apart * random.normal());
    }
    const kernels::SampleSettings settings{.temperature = 0.8, .top_p = 0.95};
    const auto ours = kernels::likely_tokens(p, *std::ranges::max_element(p), settings);
    const auto theirs = kernels::likely_tokens(q, *std::ranges::max_element(q), settings);
    std::vector<double> shares(p.size());
    double sum = 0, other_sum = 0, common = 0;
    for (const auto& token : ours)
      sum += static_cast<double>(token.weight);
    for (const auto& token : theirs)
      other_sum += static_cast<double>(token.weight);
    for (const auto& token : ours)
      shares[token.token] = static_cast<double>(token.weight) / sum;
    for (const auto& token : theirs)
      common += std::min(shares[token.token], static_cast<double>(token.weight) / other_sum);
    uint32_t same = 0;
    for (uint32_t i = 0; i < kDraws; ++i)
      same += kernels::draw_token(ours, {.seed = 1, .position = i}) ==
                      kernels::draw_token(theirs, {.seed = 1, .position = i})
                  ? 1
                  : 0;
    const double rate = static_cast<double>(same) / kDraws;
    const double deviation = 5 * std::sqrt(0.25 / kDraws);
    CHECK(rate > common / (2 - common) - deviation);  // (1 - d) / (1 + d)
    CHECK(rate < common + deviation);                 // 1 - d, the most that there is
  }
}

}  // namespace
}  // namespace dspack::test::sample_noise_test
