#include "format/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace dspack {
namespace {

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  uint32_t bits;
};

// In the order of the enumerators, so that the table can be indexed by them.
constexpr std::array<DtypeInfo, 22> kDtypes{{
    {Dtype::boolean, "BOOL", 8},
    {Dtype::u8, "U8", 8},
    {Dtype::i8, "I8", 8},
    {Dtype::i16, "I16", 16},
    {Dtype::u16, "U16", 16},
    {Dtype::i32, "I32", 32},
    {Dtype::u32, "U32", 32},
    {Dtype::i64, "I64", 64},
    {Dtype::u64, "U64", 64},
    {Dtype::f16, "F16", 16},
    {Dtype::bf16, "BF16", 16},
    {Dtype::f32, "F32", 32},
    {Dtype::f64, "F64", 64},
    {Dtype::c64, "C64", 64},
    {Dtype::f8_e4m3, "F8_E4M3", 8},
    {Dtype::f8_e5m2, "F8_E5M2", 8},
    {Dtype::f8_e8m0, "F8_E8M0", 8},
    {Dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {Dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {Dtype::f6_e2m3, "F6_E2M3", 6},
    {Dtype::f6_e3m2, "F6_E3M2", 6},
    {Dtype::f4, "F4", 4},
}};

const DtypeInfo& info(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  return info(dtype).name;
}

uint32_t bits_of(Dtype dtype) {
  return info(dtype).bits;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const DtypeInfo& entry : kDtypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

float f8_e4m3_to_f32(uint8_t bits) {
  const int exponent = (bits >> 3) & 0xf;
  const int mantissa = bits & 0x7;
  const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
  if (exponent == 0xf && mantissa == 0x7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);  // subnormal: m/8 * 2^-6
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);      // (1 + m/8) * 2^(e-7)
}

float f8_e8m0_to_f32(uint8_t bits) {
  if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0F, static_cast<int>(bits) - 127);
}

float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: m * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40U);  // quiet: never becomes infinity
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 65520.0F) return static_cast<uint16_t>(sign | 0x7c00U);  // halfway to 2^16, which is even
  // Below 2^-14 values are 2^-24 apart, as are FP32 values from 1/2 to 1: adding 1/2 rounds to them.
  if (magnitude < 0x1p-14F) {
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0.5F) - std::bit_cast<uint32_t>(0.5F)));
  }
  const uint32_t rebased = std::bit_cast<uint32_t>(magnitude) - (112U << 23);  // exponent bias 127 -> 15
  return static_cast<uint16_t>(sign | ((rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13));
}

uint8_t f32_to_f8_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7fU);
  if (magnitude >= 448.0F) return static_cast<uint8_t>(sign | 0x7eU);
  // Below 2^-6 values are 2^-9 apart, as are FP32 values from 2^14 to 2^15: adding 2^14 rounds to them.
  if (magnitude < 0x1p-6F) {
    return static_cast<uint8_t>(sign |
                                (std::bit_cast<uint32_t>(magnitude + 0x1p14F) - std::bit_cast<uint32_t>(0x1p14F)));
  }
  const uint32_t rebased = std::bit_cast<uint32_t>(magnitude) - (120U << 23);  // exponent bias 127 -> 7
  return static_cast<uint8_t>(sign | ((rebased + 0x7ffffU + ((rebased >> 20) & 1U)) >> 20));
}

}  // namespace dspack
