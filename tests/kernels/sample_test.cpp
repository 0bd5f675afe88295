// Drawing a token: every device takes the one that a plain sort, exact sums and the noise name, whatever the logits
// are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/sample_noise.h"
#include "kernels/sample_weights.h"
#include "tests/kernels/lab.h"

namespace dspack::test::sample_test {
namespace {

using kernels::NoiseKey;
using kernels::SampleSettings;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
__extension__ typedef unsigned __int128 Wide;  // NOLINT(modernize-use-using): __extension__ wants it

/// share * 2^53, cut off.
Wide in_53_bits(double share) {
  return static_cast<uint64_t>(std::ldexp(share, 53));
}

/// The steps in their order, each by itself and over everything.
uint32_t plainly_drawn(std::span<const float> logits, const SampleSettings& settings, const NoiseKey& key) {
  for (const float logit : logits)
    if (std::isnan(logit) || logit == kInfinity) return kernels::kNoToken;
  const float highest = *std::ranges::max_element(logits);
  if (highest == -kInfinity) return kernels::kNoToken;
  std::vector<uint32_t> sorted(logits.size());
  std::iota(sorted.begin(), sorted.end(), 0U);
  std::ranges::stable_sort(sorted, [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  if (settings.top_k > 0 && settings.top_k < sorted.size()) {
    const float lowest = logits[sorted[settings.top_k - 1]];
    std::erase_if(sorted, [&](uint32_t token) { return logits[token] < lowest; });
  }
  const auto weight = [&](uint32_t token) {
    const double below = static_cast<double>(logits[token]) - static_cast<double>(highest);
    return Wide{kernels::weight_of(below / settings.temperature)};
  };
  const auto sum = [&] {
    Wide all = 0;
    for (const uint32_t token : sorted)
      all += weight(token);
    return all;
  };
  if (settings.top_p < 1) {
    const Wide enough = sum() * in_53_bits(settings.top_p);
    size_t count = 0;
    for (Wide so_far = 0; count == 0 || so_far << 53U < enough; ++count)
      so_far += weight(sorted[count]);
    sorted.resize(count);
  }
  const double least = settings.min_p * std::ldexp(1.0, kernels::kUnitBits);
  std::erase_if(sorted, [&](uint32_t token) { return static_cast<double>(weight(token)) < least; });
  std::erase_if(sorted, [&](uint32_t token) { return weight(token) == 0; });
  const auto arrival = [&](uint32_t token) {
    return kernels::exponential_of(kernels::noise_of(key, token)) / static_cast<double>(weight(token));
  };
  std::ranges::sort(sorted);
  return *std::ranges::min_element(sorted, {}, arrival);
}

struct Draws {
  std::vector<float> logits;  // of one row; every row has the same
  SampleSettings settings;
  std::vector<NoiseKey> keys = {};  // a row each
};

void check_draws(Lab& lab, const Draws& draws) {
  const auto cols = static_cast<uint32_t>(draws.logits.size());
  const auto rows = static_cast<uint32_t>(draws.keys.size());
  const uint32_t stride = cols + 3;
  std::vector<float> logits(size_t{rows} * stride, kInfinity);  // which nobody may see
  for (size_t row = 0; row < rows; ++row)
    std::ranges::copy(draws.logits, logits.begin() + static_cast<std::ptrdiff_t>(row * stride));
  logits.resize(logits.size() - 3);
  const kernels::Slice ids = lab.poisoned(rows);
  lab.queue().sample({.logits = {.data = lab.put(logits), .rows = rows, .cols = cols, .stride = stride},
                      .settings = lab.put(std::vector{draws.settings}),
                      .keys = lab.put(draws.keys),
                      .ids = ids});
  const auto found = lab.get<uint32_t>(ids, rows);
  CAPTURE(cols);
  CAPTURE(draws.settings.temperature);
  CAPTURE(draws.settings.top_k);
  CAPTURE(draws.settings.top_p);
  CAPTURE(draws.settings.min_p);
  for (size_t row = 0; row < rows; ++row) {
    CAPTURE(draws.keys[row].seed);
    CAPTURE(draws.keys[row].position);
    CHECK(found[row] == plainly_drawn(draws.logits, draws.settings, draws.keys[row]));
  }
}

enum class Kind { spread, peaked, flat, tied, excluded, nearly_equal };
constexpr Kind kKinds[] = {Kind::spread, Kind::peaked, Kind::flat, Kind::tied, Kind::excluded, Kind::nearly_equal};

std::vector<float> logits_of(Kind kind, uint32_t cols, Random& random) {
  std::vector<float> logits = random.normals(cols);
  for (float& logit : logits) {
    switch (kind) {
      case Kind::spread: logit *= 6; break;
      case Kind::peaked: logit -= 20; break;
      case Kind::flat: logit = 0.5F; break;
      case Kind::tied: logit = static_cast<float>(random.below(4)) * (random.below(2) == 0 ? 1.0F : -1.0F); break;
      case Kind::excluded: logit = random.below(3) == 0 ? logit : -kInfinity; break;
      case Kind::nearly_equal: logit = 1 + static_cast<float>(random.below(3)) * 0x1p-23F; break;
    }
  }
  logits[random.below(cols)] = kind == Kind::peaked ? 3.0F : 0.5F;  // at least one that is possible
  return logits;
}

template <class T, size_t kCount>
T any_of(const T (&values)[kCount], Random& random) {
  return values[random.below(kCount)];
}

SampleSettings any_settings(uint32_t cols, Random& random) {
  const uint32_t counts[] = {0, 0, 1, 2, 40, cols, cols + 5};
  return {.temperature = any_of({0.2, 0.8, 1.0, 1.0, 3.0, 1e-300, 1e6}, random),
          .top_p = any_of({1.0, 1.0, 0.9, 0.9, 0.5, 0.3, 1e-9, 1 - 1e-12}, random),
          .min_p = any_of({0.0, 0.0, 0.05, 0.3, 1.0, 1e-20}, random),
          .top_k = any_of(counts, random)};
}

std::vector<NoiseKey> any_keys(size_t count, Random& random) {
  std::vector<NoiseKey> keys = {{.seed = 0, .position = 0}, {.seed = UINT64_MAX, .position = UINT64_MAX}};
  while (keys.size() < count)
    keys.push_back({.seed = random.below(UINT32_MAX), .position = random.below(1U << 20U)});
  return keys;
}

KERNEL_CASE("sample: any logits, any settings, the token that a sort, exact sums and the noise name") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  INFO("seed ", random.seed());
  Lab lab(Set::kName);
  for (const uint32_t cols : {1U, 2U, 31U, 127U, 128U, 129U, 300U, 700U}) {
    for (const Kind kind : kKinds) {
      check_draws(lab, {logits_of(kind, cols, random), any_settings(cols, random), any_keys(8, random)});
    }
  }
}

KERNEL_CASE("sample: each step alone, where it cuts") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  INFO("seed ", random.seed());
  Lab lab(Set::kName);
  const auto logits = logits_of(Kind::tied, 260, random);
  const std::vector<NoiseKey> keys = any_keys(16, random);
  for (const uint32_t top_k : {1U, 2U, 3U, 4U, 50U, 259U, 260U})  // around the number of chunks, too
    check_draws(lab, {logits, {.top_k = top_k}, keys});
  for (const double top_p : {1e-300, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 0x1p-53})
    check_draws(lab, {logits, {.top_p = top_p}, keys});
  for (const double min_p : {1e-6, 0.1, std::exp(-1.0), 0.99, 1.0})
    check_draws(lab, {logits, {.min_p = min_p}, keys});
  check_draws(lab, {logits, {.top_p = 0.9, .min_p = 0.1, .top_k = 70}, keys});
}

KERNEL_CASE("sample: among equals a sum of exactly the share is enough") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  Lab lab(Set::kName);
  const std::vector<float> logits(256, -2.5F);
  const std::vector<NoiseKey> keys = any_keys(8, random);
  for (const double top_p : {1.0, 0.5, 0.25, 1.0 / 256, 0.3})
    check_draws(lab, {logits, {.temperature = 0.7, .top_p = top_p}, keys});
}

KERNEL_CASE("sample: NaN, infinity and nothing possible have no token, whatever the other rows have") {
  SKIP_UNLESS_SET_RUNS();
  constexpr uint32_t kCols = 150;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Lab lab(Set::kName);
  for (const double top_p : {1.0, 0.9}) {
    std::vector<float> logits(6 * kCols, 1.0F);
    logits[0 * kCols + 149] = nan;
    logits[1 * kCols + 3] = -nan;
    logits[2 * kCols + 128] = kInfinity;
    std::fill_n(logits.begin() + 3 * kCols, kCols, -kInfinity);
    std::fill_n(logits.begin() + 4 * kCols, kCols, -kInfinity);
    logits[4 * kCols + 140] = -3e38F;
    logits[5 * kCols + 7] = 100;
    const kernels::Slice ids = lab.poisoned(6);
    lab.queue().sample({.logits = {.data = lab.put(logits), .rows = 6, .cols = kCols, .stride = kCols},
                        .settings = lab.put(std::vector{SampleSettings{.top_p = top_p, .top_k = 20}}),
                        .keys = lab.put(std::vector<NoiseKey>(6)),
                        .ids = ids});
    constexpr uint32_t kNone = kernels::kNoToken;
    CHECK(lab.get<uint32_t>(ids, 6) == std::vector<uint32_t>{kNone, kNone, kNone, kNone, 140, 7});
  }
}

TEST_CASE("sample: a weight is e^x to half a unit, and falls with x") {
  Random random;
  INFO("seed ", random.seed());
  CHECK(kernels::weight_of(0) == kernels::kHeaviest);
  CHECK(kernels::weight_of(-0.0) == kernels::kHeaviest);
  CHECK(kernels::weight_of(-static_cast<double>(kInfinity)) == 0);
  CHECK(kernels::weight_of(-1e300) == 0);
  double worst = 0;
  uint64_t before = kernels::kHeaviest;
  for (int i = 0; i < 100'000; ++i) {
    const double x = -33.0 * (i + 0.5) / 100'000;
    const uint64_t weight = kernels::weight_of(x);
    worst = std::max(worst, std::abs(static_cast<double>(weight) - std::ldexp(std::exp(x), kernels::kUnitBits)));
    CHECK(weight <= before);
    before = weight;
  }
  CHECK(worst <= 0.51);
}

TEST_CASE("sample: places of shares are exact") {
  Random random;
  INFO("seed ", random.seed());
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t sum = (uint64_t{random.below(UINT32_MAX)} << 32U | random.below(UINT32_MAX)) >> random.below(64);
    const double share = i % 3 == 0 ? random.below(8) / 8.0 : static_cast<double>(random.uniform(0, 0.999F));
    const Wide exact = in_53_bits(share) * sum;
    CHECK(kernels::last_place_of(share, sum) == (exact == 0 ? 0 : static_cast<uint64_t>((exact - 1) >> 53U)));
  }
}

}  // namespace
}  // namespace dspack::test::sample_test
