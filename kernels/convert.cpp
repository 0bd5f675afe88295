#include "kernels/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

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

/// Results for every E4M3 code under one scale. A block has far more values than there are codes.
template <class T>
struct CodeTable {
  std::array<T, 256> stored;
  std::array<double, 256> squared_error;
  std::array<double, 256> squared_value;
};

/// `store` converts an FP32 product to the stored type; `load` converts it back to FP32.
template <class T, class Store, class Load>
void fill(CodeTable<T>& table, float scale, const Store& store, const Load& load) {
  const std::array<float, 256>& values = e4m3_values();
  for (size_t code = 0; code < values.size(); ++code) {
    table.stored[code] = store(values[code] * scale);
    const double meant = static_cast<double>(values[code]) * static_cast<double>(scale);  // exact in FP64
    const double error = static_cast<double>(load(table.stored[code])) - meant;
    const bool counts = std::isfinite(meant);  // NaN stays NaN and adds no loss
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
  // Without the sign bit, finite BF16 values order as their bits do.
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

namespace {

template <class T>
T load_as(const std::byte* from, uint64_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

float scale_at(const WeightAt<const std::byte*>& matrix, uint64_t index) {
  const std::byte* scales = matrix.planes[kScales];
  float scale = 0;
  switch (matrix.scale) {
    case ScaleCoding::f32: scale = load_as<float>(scales, index); break;
    case ScaleCoding::bf16: scale = bf16_to_f32(load_as<uint16_t>(scales, index)); break;
    case ScaleCoding::f16: scale = f16_to_f32(load_as<uint16_t>(scales, index)); break;
    case ScaleCoding::f8_e4m3: scale = f8_e4m3_to_f32(load_as<uint8_t>(scales, index)); break;
    case ScaleCoding::f8_e8m0: scale = f8_e8m0_to_f32(load_as<uint8_t>(scales, index)); break;
  }
  if (matrix.global == GlobalScale::none) return scale;
  const auto global = load_as<float>(matrix.planes[kGlobal], 0);
  return matrix.global == GlobalScale::times ? scale * global : scale / global;
}

/// The values of codes [begin, end) of a row, before scales.
void decode_codes(Coding coding, const std::byte* row, uint64_t begin, uint64_t end, float zero, float* values) {
  constexpr std::array<float, 16> kE2m1 = {0,     0.5F,  1,     1.5F,  2,     3,     4,     6,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  const auto nibble = [row](uint64_t i) { return std::to_integer<uint32_t>(row[i / 2] >> (i % 2 * 4)) & 0xf; };
  const auto each = [&](const auto& value) {
    for (uint64_t i = begin; i < end; ++i)
      values[i] = value(i);
  };
  switch (coding) {
    case Coding::f32: return each([row](uint64_t i) { return load_as<float>(row, i); });
    case Coding::bf16: return each([row](uint64_t i) { return bf16_to_f32(load_as<uint16_t>(row, i)); });
    case Coding::f16: return each([row](uint64_t i) { return f16_to_f32(load_as<uint16_t>(row, i)); });
    case Coding::f8_e4m3: {
      const std::array<float, 256>& table = e4m3_values();
      return each([&table, row](uint64_t i) { return table[load_as<uint8_t>(row, i)]; });
    }
    case Coding::i8: return each([row](uint64_t i) { return static_cast<float>(load_as<int8_t>(row, i)); });
    case Coding::i4: return each([&](uint64_t i) { return static_cast<float>(nibble(i)) - 8; });
    case Coding::e2m1: return each([&](uint64_t i) { return kE2m1[nibble(i)]; });
    case Coding::u4: return each([&](uint64_t i) { return static_cast<float>(nibble(i)) - zero; });
  }
}

}  // namespace

void decode_rows(const WeightAt<const std::byte*>& matrix, uint64_t first, std::span<float> values) {
  const uint64_t rows = values.size() / matrix.in;
  DSPACK_CHECK(rows * matrix.in == values.size() && first + rows <= matrix.out, "values that are no whole rows");
  const uint64_t row_bytes = code_bytes(matrix.coding, matrix.in);
  const uint64_t block = matrix.block_out == 0 ? matrix.in : matrix.block_in;
  const uint64_t blocks = ceil_div(uint64_t{matrix.in}, block);
  for (uint64_t r = 0; r < rows; ++r) {
    const std::byte* codes = matrix.planes[kCodes] + (first + r) * row_bytes;
    float* row = values.data() + r * matrix.in;
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint64_t end = std::min<uint64_t>((b + 1) * block, matrix.in);
      const uint64_t index = matrix.block_out == 0 ? 0 : (first + r) / matrix.block_out * blocks + b;
      const bool has_zeros = facts_of(matrix.coding).has_zeros;
      const float zero = has_zeros ? static_cast<float>(load_as<uint8_t>(matrix.planes[kZeros], index)) : 0;
      decode_codes(matrix.coding, codes, b * block, end, zero, row);
      if (matrix.block_out == 0) continue;
      const float scale = scale_at(matrix, index);
      for (uint64_t i = b * block; i < end; ++i)
        row[i] *= scale;
    }
  }
}

bool are_within(std::span<const float> values, float largest) {
  uint32_t beyond = 0;  // a count, not a search: several values are compared at once
  for (const float value : values)
    beyond += std::abs(value) <= largest ? 0U : 1U;
  return beyond == 0;
}

Loss round_to_bf16(std::span<const float> values, std::span<uint16_t> bf16) {
  DSPACK_CHECK(values.size() == bf16.size(), "spans do not fit");
  Loss loss;
  for (size_t i = 0; i < values.size(); ++i) {
    bf16[i] = f32_to_bf16(values[i]);
    if (!std::isfinite(values[i])) continue;  // stays as it is and adds no loss
    const double error = static_cast<double>(bf16_to_f32(bf16[i])) - static_cast<double>(values[i]);
    loss.squared_error += error * error;
    loss.squared_value += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return loss;
}

std::optional<uint8_t> exact_e8m0(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (bits == 0x00400000U) return uint8_t{0};  // 2^-127, an FP32 subnormal
  const uint32_t exponent = bits >> 23;        // includes the sign, which must be plus
  if ((bits & 0x7fffffU) != 0 || exponent == 0 || exponent >= 0xffU) return std::nullopt;
  return static_cast<uint8_t>(exponent);
}

}  // namespace dspack::kernels
