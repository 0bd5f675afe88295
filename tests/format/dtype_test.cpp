#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "format/dtype.h"

namespace dspack::dtype_test {

using namespace dspack;

TEST_CASE("dtype: names and sizes round-trip for every type that safetensors names") {
  for (int i = 0; i <= static_cast<int>(Dtype::f4); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    CHECK(parse_dtype(to_string(dtype)) == dtype);
    CHECK(bits_of(dtype) >= 4);
  }
  CHECK(bits_of(Dtype::f8_e4m3) == 8);
  CHECK(bits_of(Dtype::f6_e3m2) == 6);
  CHECK(bits_of(Dtype::bf16) == 16);
  CHECK(bits_of(Dtype::c64) == 64);
  CHECK_FALSE(parse_dtype("f32"));
  CHECK_FALSE(parse_dtype("F16 "));
}

TEST_CASE("dtype: E4M3 has the values of its specification") {
  CHECK(f8_e4m3_to_f32(0x00) == 0.0F);
  CHECK(std::signbit(f8_e4m3_to_f32(0x80)));
  CHECK(f8_e4m3_to_f32(0x01) == std::ldexp(1.0F, -9));  // smallest subnormal
  CHECK(f8_e4m3_to_f32(0x07) == 7 * std::ldexp(1.0F, -9));
  CHECK(f8_e4m3_to_f32(0x08) == std::ldexp(1.0F, -6));  // smallest normal
  CHECK(f8_e4m3_to_f32(0x38) == 1.0F);
  CHECK(f8_e4m3_to_f32(0x7e) == 448.0F);  // largest
  CHECK(f8_e4m3_to_f32(0xfe) == -448.0F);
  CHECK(std::isnan(f8_e4m3_to_f32(0x7f)));
  CHECK(std::isnan(f8_e4m3_to_f32(0xff)));
  for (int code = 0; code < 0x7e; ++code) {  // magnitudes grow with their codes
    CHECK(f8_e4m3_to_f32(static_cast<uint8_t>(code)) < f8_e4m3_to_f32(static_cast<uint8_t>(code + 1)));
  }
}

TEST_CASE("dtype: the other small types") {
  CHECK(f8_e8m0_to_f32(127) == 1.0F);
  CHECK(f8_e8m0_to_f32(0) == std::ldexp(1.0F, -127));
  CHECK(std::isnan(f8_e8m0_to_f32(255)));
  CHECK(bf16_to_f32(0x3f80) == 1.0F);
  CHECK(f16_to_f32(0x3c00) == 1.0F);
  CHECK(f16_to_f32(0x0001) == std::ldexp(1.0F, -24));
  CHECK(f16_to_f32(0x7bff) == 65504.0F);
  CHECK(std::isinf(f16_to_f32(0x7c00)));
  CHECK(std::isnan(f16_to_f32(0x7e00)));
}

TEST_CASE("dtype: rounding to F16 and BF16") {
  std::mt19937 engine(std::random_device{}());
  for (uint32_t i = 0; i < 200000; ++i) {
    // Every code, the values half-way to the next one, their neighbours, and any bits at all.
    const uint32_t code = i & 0xffffU;
    const uint32_t wide = i % 3 == 0 ? std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(code))) : code << 16;
    const uint32_t half = i % 3 == 0 ? 0x1000U : 0x8000U;
    for (const uint32_t bits : {wide, wide + half, wide + half - 1, wide + half + 1, static_cast<uint32_t>(engine())}) {
      const auto value = std::bit_cast<float>(bits);
      CAPTURE(bits);
      if (std::isnan(value)) {
        REQUIRE(std::isnan(f16_to_f32(f32_to_f16(value))));
        REQUIRE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
        continue;
      }
      REQUIRE(f32_to_f16(value) == std::bit_cast<uint16_t>(static_cast<_Float16>(value)));
      // No type of the compiler to ask: the nearer of the two around it.
      const uint32_t below = bits & 0xffff0000U;
      const uint32_t rest = bits & 0xffffU;
      const bool up = rest > 0x8000U || (rest == 0x8000U && (below & 0x10000U) != 0);
      REQUIRE(f32_to_bf16(value) == (below + (up ? 0x10000U : 0U)) >> 16);
    }
  }
}

TEST_CASE("dtype: F16 agrees with the compiler's own conversion for every code") {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float ours = f16_to_f32(bits);
    const auto theirs = static_cast<float>(std::bit_cast<_Float16>(bits));
    if (std::isnan(theirs)) {
      CHECK(std::isnan(ours));
    } else {
      REQUIRE(std::bit_cast<uint32_t>(ours) == std::bit_cast<uint32_t>(theirs));
    }
  }
}

TEST_CASE("dtype: rounding to E4M3 takes the nearest value, of two as near the even one") {
  // All values up to the largest, by the specification: a code's magnitude grows with it, and its last bit is the
  // mantissa's.
  std::vector<double> values;
  for (int code = 0; code <= 0x7e; ++code)
    values.push_back(code < 8 ? code * 0x1p-9 : (8 + code % 8) * std::exp2(code / 8 - 10));
  const auto both_signs = [](float value, uint8_t wanted) {
    CAPTURE(value);
    REQUIRE(f32_to_f8_e4m3(value) == wanted);
    REQUIRE(f32_to_f8_e4m3(-value) == (wanted | 0x80));
  };
  for (uint8_t code = 0; code <= 0x7e; ++code) {
    const auto value = static_cast<float>(values[code]);
    REQUIRE(f8_e4m3_to_f32(code) == value);
    both_signs(value, code);
    if (code == 0x7e) break;
    const auto next = static_cast<uint8_t>(code + 1);
    const auto middle = static_cast<float>((values[code] + values[next]) / 2);  // an FP32 value
    both_signs(middle, code % 2 == 0 ? code : next);
    both_signs(std::nextafter(middle, 0.0F), code);
    both_signs(std::nextafter(middle, 1000.0F), next);
    both_signs(std::nextafter(value, 1000.0F), code);
    both_signs(std::nextafter(static_cast<float>(values[next]), 0.0F), next);
  }
  for (const float large : {448.0F, 449.0F, 463.9F, 464.0F, 480.0F, 1e9F, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::infinity()})
    both_signs(large, 0x7e);
  for (const uint32_t nan : {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0xff812345U})
    CHECK(f32_to_f8_e4m3(std::bit_cast<float>(nan)) == (nan >> 31 != 0 ? 0xff : 0x7f));
  std::mt19937 engine(std::random_device{}());
  for (int i = 0; i < 200000; ++i) {  // of all exponents near those of E4M3
    const auto value =
        std::bit_cast<float>(static_cast<uint32_t>((engine() & 0x7fffffU) | ((engine() % 24 + 112) << 23)));
    const auto above = std::lower_bound(values.begin(), values.end(), double{value});
    if (above == values.end()) {
      both_signs(value, 0x7e);
      continue;
    }
    const auto high = static_cast<uint8_t>(above - values.begin());
    const auto low = static_cast<uint8_t>(high == 0 ? 0 : high - 1);
    const double up = values[high] - double{value};
    const double down = double{value} - values[low];
    both_signs(value, up < down || (up == down && high % 2 == 0) ? high : low);
  }
}

}  // namespace dspack::dtype_test
