#include "kernels/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "format/base/check.h"
#include "format/base/size.h"
#include "format/dtype.h"

namespace dspack::kernels {
namespace {

constexpr float kLargestE4m3 = 448.0F;

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = f8_e4m3_to_f32(static_cast<uint8_t>(i));
    return table;
  }();
  return values;
}

/// What one scale makes of every E4M3 code. A block has far more values than there are codes.
template <class T>
struct CodeTable {
  std::array<T, 256> stored;
  std::array<double, 256> squared_error;
  std::array<double, 256> squared_value;
};

/// `store` takes an FP32 product and returns what is stored; `load` gives that as FP32.
template <class T, class Store, class Load>
void fill(CodeTable<T>& table, float scale, const Store& store, const Load& load) {
  const std::array<float, 256>& values = e4m3_values();
  for (size_t code = 0; code < values.size(); ++code) {
    table.stored[code] = store(values[code] * scale);
    const double meant = static_cast<double>(values[code]) * static_cast<double>(scale);  // exact in FP64
    const double error = static_cast<double>(load(table.stored[code])) - meant;
    const bool counts = std::isfinite(meant);  // NaN stays NaN, and costs nothing
    table.squared_error[code] = counts ? error * error : 0;
    table.squared_value[code] = counts ? meant * meant : 0;
  }
}

template <class T, class Store, class Load>
Loss dequantise(std::span<const uint8_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                std::span<T> out, const Store& store, const Load& load) {
  DSPACK_CHECK(rows.size() == out.size() && scales.size() == ceil_div(columns, block), "spans do not fit");
  CodeTable<T> table;
  Loss loss;
  for (size_t b = 0; b < scales.size(); ++b) {
    fill(table, scales[b], store, load);
    const size_t begin = b * block;
    const size_t end = std::min<size_t>(columns, begin + block);
    for (size_t row = 0; row < rows.size(); row += columns) {
      for (size_t i = row + begin; i < row + end; ++i) {
        out[i] = table.stored[rows[i]];
        loss.squared_error += table.squared_error[rows[i]];
        loss.squared_value += table.squared_value[rows[i]];
      }
    }
  }
  return loss;
}

}  // namespace

Loss dequantise_rows(std::span<const uint8_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                     std::span<uint16_t> bf16) {
  return dequantise(rows, columns, scales, block, bf16, f32_to_bf16, bf16_to_f32);
}

Loss dequantise_rows(std::span<const uint8_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                     std::span<float> f32) {
  const auto same = [](float value) { return value; };
  return dequantise(rows, columns, scales, block, f32, same, same);
}

bool block_scales(std::span<const uint16_t> rows, uint64_t columns, uint64_t block, std::span<float> scales) {
  DSPACK_CHECK(scales.size() == ceil_div(columns, block), "scales do not fit the rows");
  // Without their sign, finite BF16 values are in the order of their bits.
  constexpr uint16_t kMagnitude = 0x7fff;
  constexpr uint16_t kInfinity = 0x7f80;
  bool finite = true;
  for (size_t b = 0; b < scales.size(); ++b) {
    const size_t begin = b * block;
    const size_t end = std::min<size_t>(columns, begin + block);
    uint16_t largest = 0;
    for (size_t row = 0; row < rows.size(); row += columns) {
      for (size_t i = row + begin; i < row + end; ++i)
        largest = std::max(largest, static_cast<uint16_t>(rows[i] & kMagnitude));
    }
    finite = finite && largest < kInfinity;
    scales[b] = largest == 0 ? 1.0F : bf16_to_f32(largest) / kLargestE4m3;
  }
  return finite;
}

Loss quantise_rows(std::span<const uint16_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                   std::span<uint8_t> fp8) {
  DSPACK_CHECK(rows.size() == fp8.size() && scales.size() == ceil_div(columns, block), "spans do not fit");
  const std::array<float, 256>& values = e4m3_values();
  Loss loss;
  for (size_t row = 0; row < rows.size(); row += columns) {
    for (size_t b = 0; b < scales.size(); ++b) {
      const float scale = scales[b];
      const size_t end = row + std::min<size_t>(columns, (b + 1) * block);
      for (size_t i = row + b * block; i < end; ++i) {
        const float meant = bf16_to_f32(rows[i]);
        fp8[i] = f32_to_f8_e4m3(meant / scale);
        const double stored = static_cast<double>(values[fp8[i]]) * static_cast<double>(scale);
        const double error = stored - static_cast<double>(meant);
        loss.squared_error += error * error;
        loss.squared_value += static_cast<double>(meant) * static_cast<double>(meant);
      }
    }
  }
  return loss;
}

std::optional<uint8_t> exact_e8m0(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (bits == 0x00400000U) return uint8_t{0};  // 2^-127, an FP32 subnormal
  const uint32_t exponent = bits >> 23;        // with the sign, which must be plus
  if ((bits & 0x7fffffU) != 0 || exponent == 0 || exponent >= 0xffU) return std::nullopt;
  return static_cast<uint8_t>(exponent);
}

}  // namespace dspack::kernels
