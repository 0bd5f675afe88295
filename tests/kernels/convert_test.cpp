#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "format/dtype.h"
#include "kernels/convert.h"

namespace dspack::convert_test {

using namespace dspack;

namespace {

/// By the specification: sign, bias 7, subnormals, no infinity.
double e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * std::exp2(exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The code of the nearest value, by looking at all; of two as near, the one with an even mantissa.
uint8_t nearest_e4m3(double value) {
  uint8_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double here = std::abs(e4m3(static_cast<uint8_t>(code)) - std::abs(value));
    if (here < distance || (here == distance && code % 2 == 0)) best = static_cast<uint8_t>(code);
    distance = std::min(distance, here);
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

/// The nearest BF16 value as FP32 bits: of the two around it, by distance, then by the even one.
uint16_t nearest_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t below = bits & 0xffff0000U;
  const double down = std::abs(double{value} - double{std::bit_cast<float>(below)});
  const double step = std::abs(double{std::bit_cast<float>(below)}) < 0x1p-126
                          ? 0x1p-133
                          : std::exp2(std::ilogb(std::bit_cast<float>(below)) - 7);
  const double up = step - down;
  const bool rounds_up = up < down || (up == down && (below & 0x10000U) != 0);
  return static_cast<uint16_t>((below >> 16) + (rounds_up ? 1 : 0));
}

struct Matrix {
  uint64_t columns;
  std::vector<uint16_t> bf16;
};

Matrix random_matrix(uint64_t rows, uint64_t columns, float spread, std::mt19937& engine) {
  Matrix matrix{columns, {}};
  std::normal_distribution<float> normal(0, spread);
  for (uint64_t i = 0; i < rows * columns; ++i)
    matrix.bf16.push_back(f32_to_bf16(normal(engine)));
  return matrix;
}

}  // namespace

TEST_CASE("convert: every FP8 value with scales of every size becomes the FP32 product, kept or rounded to BF16") {
  std::mt19937 engine(7);
  constexpr uint64_t kColumns = 256;
  constexpr uint64_t kBlock = 100;  // the last is ragged
  std::vector<uint8_t> rows(3 * kColumns);
  for (size_t i = 0; i < rows.size(); ++i)  // so that every code meets every block
    rows[i] = static_cast<uint8_t>(i + i / kColumns * kBlock);
  for (int trial = 0; trial < 300; ++trial) {
    // Any mantissa, and exponents for which no product overflows.
    const auto random_scale = [&] {
      return std::bit_cast<float>(static_cast<uint32_t>((engine() & 0x007fffffU) | (engine() % 240 << 23)));
    };
    const std::vector<float> scales{random_scale(), random_scale(), random_scale()};
    std::vector<float> f32(rows.size());
    std::vector<uint16_t> bf16(rows.size());
    const kernels::Loss kept = kernels::dequantise_rows(rows, kColumns, scales, kBlock, std::span(f32));
    const kernels::Loss rounded = kernels::dequantise_rows(rows, kColumns, scales, kBlock, std::span(bf16));
    kernels::Loss kept_wanted;
    kernels::Loss rounded_wanted;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double meant = e4m3(rows[i]) * double{scales[i % kColumns / kBlock]};
      if (std::isnan(meant)) {
        REQUIRE(std::isnan(f32[i]));
        REQUIRE(std::isnan(bf16_to_f32(bf16[i])));
        continue;
      }
      const auto product = static_cast<float>(meant);  // one rounding, as of a product in FP32
      CAPTURE(i);
      CAPTURE(meant);
      REQUIRE(std::bit_cast<uint32_t>(f32[i]) == std::bit_cast<uint32_t>(product));
      REQUIRE(bf16[i] == nearest_bf16(product));
      kept_wanted += {std::pow(double{product} - meant, 2), meant * meant};
      rounded_wanted += {std::pow(double{bf16_to_f32(bf16[i])} - meant, 2), meant * meant};
    }
    CHECK(kept.squared_error == doctest::Approx(kept_wanted.squared_error).epsilon(1e-12));
    CHECK(rounded.squared_error == doctest::Approx(rounded_wanted.squared_error).epsilon(1e-12));
    CHECK(kept.squared_value == doctest::Approx(kept_wanted.squared_value).epsilon(1e-12));
    CHECK(rounded.squared_value == kept.squared_value);
  }
}

TEST_CASE("convert: what FP32 or BF16 cannot hold shows as an infinite loss") {
  const std::vector<uint8_t> row{0x7e};  // 448
  std::vector<float> f32(1);
  std::vector<uint16_t> bf16(1);
  const std::vector<float> too_large{0x1p120F};
  CHECK(std::isinf(kernels::dequantise_rows(row, 1, too_large, 128, std::span(f32)).squared_error));
  const float last = std::numeric_limits<float>::max() / 448;  // an FP32 value, beyond the largest of BF16
  const std::vector<float> large{last};
  CHECK(std::isfinite(kernels::dequantise_rows(row, 1, large, 128, std::span(f32)).squared_error));
  CHECK(std::isinf(kernels::dequantise_rows(row, 1, large, 128, std::span(bf16)).squared_error));
}

TEST_CASE("convert: block scales are the largest magnitude over 448, one of a block of zeros is 1") {
  std::mt19937 engine(8);
  for (const auto& [rows, columns] : {std::pair<uint64_t, uint64_t>{128, 384}, {128, 300}, {5, 1}, {1, 129}, {0, 7}}) {
    CAPTURE(rows);
    CAPTURE(columns);
    Matrix matrix = random_matrix(rows, columns, 0.02F, engine);
    const uint64_t blocks = (columns + 127) / 128;
    for (uint64_t row = 0; row < rows && blocks > 1; ++row) {  // the second block is zeros of both signs
      for (uint64_t column = 128; column < std::min<uint64_t>(columns, 256); ++column)
        matrix.bf16[row * columns + column] = row % 2 == 0 ? 0 : 0x8000;
    }
    std::vector<float> scales(blocks, -1);
    REQUIRE(kernels::block_scales(matrix.bf16, columns, 128, scales));
    for (uint64_t block = 0; block < blocks; ++block) {
      float largest = 0;
      for (uint64_t i = 0; i < matrix.bf16.size(); ++i) {
        if (i % columns / 128 == block) largest = std::max(largest, std::abs(bf16_to_f32(matrix.bf16[i])));
      }
      CHECK(scales[block] == (largest == 0 ? 1.0F : static_cast<float>(double{largest} / 448)));
    }
  }
}

TEST_CASE("convert: a NaN or infinity anywhere has no scale") {
  for (const uint32_t bad : {0x7f80U, 0xff80U, 0x7f81U, 0xffffU, 0x7fc0U}) {
    for (const size_t at : {0, 77, 299}) {
      std::vector<uint16_t> rows(300, 0x3f80);
      rows[at] = static_cast<uint16_t>(bad);
      std::vector<float> scales(2);
      CHECK_FALSE(kernels::block_scales(rows, 150, 128, scales));
    }
  }
  std::vector<uint16_t> largest(300, 0x7f7f);
  std::vector<float> scales(2);
  CHECK(kernels::block_scales(largest, 150, 128, scales));
}

TEST_CASE("convert: quantised rows hold the nearest E4M3 value of each quotient, and the loss is theirs") {
  std::mt19937 engine(9);
  for (const float spread : {0.02F, 1e-37F, 1e30F, 1e-39F /* subnormal */}) {
    for (const uint64_t columns : {128U, 300U, 1U}) {
      CAPTURE(spread);
      CAPTURE(columns);
      const Matrix matrix = random_matrix(64, columns, spread, engine);
      std::vector<float> scales((columns + 127) / 128);
      REQUIRE(kernels::block_scales(matrix.bf16, columns, 128, scales));
      std::vector<uint8_t> fp8(matrix.bf16.size());
      const kernels::Loss loss = kernels::quantise_rows(matrix.bf16, columns, scales, 128, fp8);
      double squared_error = 0;
      double squared_value = 0;
      for (size_t i = 0; i < fp8.size(); ++i) {
        const double value = bf16_to_f32(matrix.bf16[i]);
        const double scale = scales[i % columns / 128];
        const auto quotient = static_cast<float>(value / scale);  // a quotient in FP64 rounds to that in FP32
        REQUIRE(fp8[i] == nearest_e4m3(quotient));
        squared_error += std::pow(e4m3(fp8[i]) * scale - value, 2);
        squared_value += value * value;
      }
      CHECK(loss.squared_error == doctest::Approx(squared_error).epsilon(1e-12));
      CHECK(loss.squared_value == doctest::Approx(squared_value).epsilon(1e-12));
    }
  }
}

TEST_CASE("convert: the largest value of a block becomes the largest of E4M3, of whatever magnitude it is") {
  for (uint32_t bits = 1; bits < 0x7f80; bits += 97) {
    const std::vector<uint16_t> rows{static_cast<uint16_t>(bits), static_cast<uint16_t>(bits | 0x8000U)};
    std::vector<float> scales(1);
    REQUIRE(kernels::block_scales(rows, 2, 128, scales));
    std::vector<uint8_t> fp8(2);
    (void)kernels::quantise_rows(rows, 2, scales, 128, fp8);
    CAPTURE(bits);
    // Below this FP32 itself is too coarse for the scale, and the quotient is some other value of about that size.
    const bool exact = bf16_to_f32(rows[0]) >= 0x1p-116F;
    CHECK(fp8[0] >= (exact ? 0x7e : 0x78));
    CHECK(fp8[0] <= 0x7e);
    CHECK(fp8[1] == (fp8[0] | 0x80));
  }
}

TEST_CASE("convert: E8M0 takes powers of two from 2^-127 to 2^127 and nothing else") {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    CAPTURE(exponent);
    const float power = std::ldexp(1.0F, exponent);
    const std::optional<uint8_t> code = kernels::exact_e8m0(power);
    REQUIRE(code.has_value() == (exponent >= -127));
    if (code) {
      CHECK(*code == exponent + 127);
      CHECK(f8_e8m0_to_f32(*code) == power);
    }
    CHECK_FALSE(kernels::exact_e8m0(-power));
    // Subnormal neighbours may be powers of two themselves.
    if (exponent > -126) CHECK_FALSE(kernels::exact_e8m0(std::nextafter(power, 0.0F)));
    if (exponent > -148) CHECK_FALSE(kernels::exact_e8m0(std::nextafter(power, 1e38F)));
  }
  for (const float value : {0.0F, -0.0F, 3.0F, 1.5F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max()})
    CHECK_FALSE(kernels::exact_e8m0(value));
  std::mt19937 engine(10);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(engine()));
    int exponent = 0;
    const bool power = std::isfinite(value) && std::frexp(value, &exponent) == 0.5F && exponent >= -126;
    REQUIRE(kernels::exact_e8m0(value).has_value() == power);
  }
}

}  // namespace dspack::convert_test
