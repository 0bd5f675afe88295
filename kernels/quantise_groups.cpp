#include "kernels/quantise_groups.h"

#include <algorithm>
#include <array>
#include <optional>

#include "format/base/check.h"
#include "format/dtype.h"
#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {

Loss quantise_int4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint16_t> scales) {
  DSPACK_CHECK(values.size() % kIntegerGroup == 0 && codes.size() == values.size() / 2 &&
                   scales.size() == values.size() / kIntegerGroup,
               "spans do not fit");
  QuantiseTask task{.values = values.data(), .groups = scales.size(), .codes = codes.data(), .scales = scales.data()};
  widest_ops().quantise_int4(task);
  return {task.squared_error, task.squared_value};
}

Loss quantise_int8(std::span<const float> values, std::span<uint8_t> codes, std::span<uint16_t> scales) {
  DSPACK_CHECK(values.size() % kIntegerGroup == 0 && codes.size() == values.size() &&
                   scales.size() == values.size() / kIntegerGroup,
               "spans do not fit");
  QuantiseTask task{.values = values.data(), .groups = scales.size(), .codes = codes.data(), .scales = scales.data()};
  widest_ops().quantise_int8(task);
  return {task.squared_error, task.squared_value};
}

Loss quantise_nvfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  DSPACK_CHECK(values.size() % kNvfp4Group == 0 && codes.size() == values.size() / 2 &&
                   scales.size() == values.size() / kNvfp4Group,
               "spans do not fit");
  QuantiseTask task{.values = values.data(),
                    .groups = scales.size(),
                    .codes = codes.data(),
                    .scales = scales.data(),
                    .global = kNvfp4Global};
  widest_ops().quantise_nvfp4(task);
  return {task.squared_error, task.squared_value};
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
