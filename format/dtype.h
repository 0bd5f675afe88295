// Element types of a checkpoint: their names, sizes, and conversions of single values.
// Threads: thread-safe (pure functions). Source: safetensors spec; OCP 8-bit floating point specification 1.0.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dspack {

/// All element types of the safetensors format. Their spelling in files is `to_string`.
enum class Dtype : uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f16,
  bf16,
  f32,
  f64,
  c64,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f6_e2m3,
  f6_e3m2,
  f4,
};

[[nodiscard]] std::string_view to_string(Dtype dtype);
[[nodiscard]] std::optional<Dtype> parse_dtype(std::string_view name);

/// Bits of one element: 4, 6, 8, 16, 32 or 64.
[[nodiscard]] uint32_t bits_of(Dtype dtype);

/// Bytes of `count` packed elements, rounded up.
[[nodiscard]] inline uint64_t bytes_of(Dtype dtype, uint64_t count) {
  return (count * bits_of(dtype) + 7) / 8;
}

// Exact conversions to FP32: every value of the small type is an FP32 value, NaN stays NaN.
[[nodiscard]] float f8_e4m3_to_f32(uint8_t bits);  // bias 7, no infinity, 0x7f and 0xff are NaN
[[nodiscard]] float f8_e8m0_to_f32(uint8_t bits);  // 2^(bits-127), 0xff is NaN
[[nodiscard]] float bf16_to_f32(uint16_t bits);
[[nodiscard]] float f16_to_f32(uint16_t bits);

// Round to the nearest value of the small type, ties to even. Beyond the largest: infinity. NaN stays NaN.
[[nodiscard]] uint16_t f32_to_bf16(float value);
[[nodiscard]] uint16_t f32_to_f16(float value);
/// The largest finite F16 value.
inline constexpr float kLargestHalf = 65504.0F;
/// The same, but E4M3 has no infinity: beyond its largest value, 448, the result is that value.
[[nodiscard]] uint8_t f32_to_f8_e4m3(float value);

}  // namespace dspack
