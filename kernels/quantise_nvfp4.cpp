#include "kernels/quantise_nvfp4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "format/base/check.h"
#include "format/dtype.h"
#include "kernels/group_search.h"

namespace dspack::kernels {
namespace {

using Nvfp4Group = Group<kNvfp4Group>;

// Candidate scales, as multiples of largest magnitude / 6. Relative RMS error of Gaussian values and of Student's t
// with 5 degrees of freedom: 0.083; with the factor 1 alone 0.095 and 0.092.
constexpr std::array<float, 9> kFactors = {1.0F, 0.96F, 0.92F, 0.88F, 0.84F, 0.80F, 0.76F, 1.04F, 1.5F};
constexpr float kLargestScale = 448.0F;
constexpr float kLeastScale = 0x1p-9F;  // a scale of 0 would lose every value

/// Rounds to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with either sign, ties to even. Adding and subtracting 1.5 *
/// 2^22 rounds to multiples of 0.5; twice and four times that, to multiples of 1 and of 2: the spacing of the codes in
/// each range.
Four round_to_e2m1(Four scaled) {
  constexpr Four kHalves = {0x1.8p22F, 0x1.8p22F, 0x1.8p22F, 0x1.8p22F};
  constexpr Four kMax = {6.0F, 6.0F, 6.0F, 6.0F};
  const Four low = scaled < -kMax ? -kMax : scaled;
  const Four bounded = low > kMax ? kMax : low;
  const Four size = bounded < 0.0F ? -bounded : bounded;
  const Four rounder = size < 2.0F ? kHalves : size < 4.0F ? kHalves * 2.0F : kHalves * 4.0F;
  return (bounded + rounder) - rounder;
}

/// The code of a result of round_to_e2m1.
uint8_t e2m1_code(float value) {
  const float size = value < 0 ? -value : value;
  const float index = size < 2 ? size * 2 : size < 4 ? size + 2 : size / 2 + 4;
  return static_cast<uint8_t>(static_cast<uint32_t>(index) | (value < 0 ? 8U : 0U));
}

/// The nearest value of E4M3 from 2^-9 to 448, ties to even. Same rounding as format/dtype.h, whose nine calls per
/// group would take half of the time.
float round_to_e4m3(float value) {
  constexpr float kLeastNormal = 0x1p-6F;
  if (value < kLeastNormal) {
    constexpr float kRounder = 0x1.8p14F;  // adding and taking it away rounds to multiples of 2^-9
    return (value + kRounder) - kRounder;
  }
  constexpr uint32_t kCut = 20;  // keeps 3 of the 23 mantissa bits
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t half = (1U << (kCut - 1)) - 1 + (bits >> kCut & 1U);
  return std::bit_cast<float>((bits + half) & ~((1U << kCut) - 1));
}

/// The returned scale times kNvfp4Global is exactly an E4M3 value.
Rounded<kNvfp4Group> choose_nvfp4(const Nvfp4Group& group) {
  const float outer = outermost(group);
  const float largest = outer < 0 ? -outer : outer;
  if (largest == 0) return {.scale = 1 / kNvfp4Global, .rounded = {}};
  std::array<float, kFactors.size()> scales{};
  for (size_t i = 0; i < scales.size(); ++i) {
    const float wanted = std::clamp(kFactors[i] * (largest / 6) * kNvfp4Global, kLeastScale, kLargestScale);
    scales[i] = round_to_e4m3(wanted) / kNvfp4Global;
  }
  return search_scale(group, std::span<const float>(scales), round_to_e2m1);
}

}  // namespace

Loss quantise_nvfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  DSPACK_CHECK(values.size() % kNvfp4Group == 0 && codes.size() == values.size() / 2 &&
                   scales.size() == values.size() / kNvfp4Group,
               "spans do not fit");
  Loss loss;
  Nvfp4Group group = {};
  for (size_t g = 0; g < scales.size(); ++g) {
    std::ranges::copy(values.subspan(g * kNvfp4Group, kNvfp4Group), group.values);
    const Rounded<kNvfp4Group> chosen = choose_nvfp4(group);
    scales[g] = f32_to_f8_e4m3(chosen.scale * kNvfp4Global);
    for (uint32_t i = 0; i < kNvfp4Group; i += 2) {
      const uint32_t second = e2m1_code(chosen.rounded.values[i + 1]);
      codes[(g * kNvfp4Group + i) / 2] = static_cast<uint8_t>(e2m1_code(chosen.rounded.values[i]) | second << 4);
    }
    for (uint32_t i = 0; i < kNvfp4Group; ++i) {
      const auto meant = static_cast<double>(group.values[i]);
      const double stored = static_cast<double>(chosen.rounded.values[i]) * static_cast<double>(chosen.scale);
      loss.squared_error += (stored - meant) * (stored - meant);
      loss.squared_value += meant * meant;
    }
  }
  return loss;
}

namespace {

/// The E4M3 code of a scale times kNvfp4Global; nullopt if there is no exact one.
std::optional<uint8_t> held_scale(float scale) {
  const float wanted = scale * kNvfp4Global;
  const uint8_t code = f32_to_f8_e4m3(wanted);
  return wanted > 0 && f8_e4m3_to_f32(code) == wanted ? std::optional(code) : std::nullopt;
}

/// For each byte, the sum of the squares of its two codes. Sums over a group are exact in any order.
constexpr std::array<float, 256> kSquares = [] {
  constexpr std::array<float, 8> kE2m1 = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  std::array<float, 256> squares{};
  for (size_t byte = 0; byte < squares.size(); ++byte) {
    const float first = kE2m1[byte % 8];
    const float second = kE2m1[byte / 16 % 8];
    squares[byte] = first * first + second * second;
  }
  return squares;
}();

}  // namespace

bool nvfp4_holds(std::span<const float> scales) {
  return std::ranges::all_of(scales, [](float scale) { return held_scale(scale).has_value(); });
}

Loss mxfp4_to_nvfp4(std::span<const uint8_t> stored, std::span<const float> stored_scales,
                    std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  constexpr size_t kBytes = kMxfp4Group / 2;
  constexpr size_t kScalesInGroup = kMxfp4Group / kNvfp4Group;
  DSPACK_CHECK(stored.size() == stored_scales.size() * kBytes && codes.size() == stored.size() &&
                   scales.size() == stored_scales.size() * kScalesInGroup &&
                   (values.empty() || values.size() == stored.size() * 2),
               "spans do not fit");
  Loss loss;
  for (size_t g = 0; g < stored_scales.size(); ++g) {
    const auto from = stored.subspan(g * kBytes, kBytes);
    const auto to_codes = codes.subspan(g * kBytes, kBytes);
    const auto to_scales = scales.subspan(g * kScalesInGroup, kScalesInGroup);
    const std::optional<uint8_t> scale = held_scale(stored_scales[g]);
    if (!scale) {
      loss += quantise_nvfp4(values.subspan(g * kMxfp4Group, kMxfp4Group), to_codes, to_scales);
      continue;
    }
    std::ranges::copy(from, to_codes.begin());
    std::ranges::fill(to_scales, *scale);
    float squares = 0;
    for (const uint8_t byte : from)
      squares += kSquares[byte];
    const auto unit = static_cast<double>(stored_scales[g]);
    loss.squared_value += static_cast<double>(squares) * unit * unit;
  }
  return loss;
}

}  // namespace dspack::kernels
