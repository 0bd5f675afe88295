// Conversions between the forms in which weights are stored, on plain memory: what repacking needs.
// Threads: thread-safe (pure functions). Errors: none; spans that do not fit are programming errors.
// Source: DeepSeek-V3, inference/kernel.py (weight_dequant, act_quant) and fp8_cast_bf16.py; OCP Microscaling
// Formats 1.0 for E8M0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/weight.h"

namespace dspack::kernels {

/// What rounding has cost: sums over values, of (stored - meant)^2 and of meant^2. FP64, in the order of the calls.
struct Loss {
  double squared_error = 0;
  double squared_value = 0;
  Loss& operator+=(const Loss& other) {
    squared_error += other.squared_error;
    squared_value += other.squared_value;
    return *this;
  }
};

/// Rows of FP8 E4M3 values [rows, columns] that share their scales, `block` columns to one: FP32 products, rounded to
/// BF16 or kept. ceil(columns / block) scales, as many values out as in. The loss is infinite if a finite product is
/// too large for what is stored.
Loss dequantise_rows(std::span<const uint8_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                     std::span<uint16_t> bf16);
Loss dequantise_rows(std::span<const uint8_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                     std::span<float> f32);

/// The scales of up to `block` rows of BF16 values [rows, columns]: a block's largest magnitude / 448, E4M3's largest
/// value; 1 for a block of zeros. A NaN or infinity has no scale: false.
[[nodiscard]] bool block_scales(std::span<const uint16_t> rows, uint64_t columns, uint64_t block,
                                std::span<float> scales);
/// The same rows as E4M3 values of value / scale, to the nearest, of two as near to the even one.
Loss quantise_rows(std::span<const uint16_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                   std::span<uint8_t> fp8);

/// The FP32 values of whole rows of a matrix in host memory, from row `first` on: each is its code's, less its zero
/// point where there is one, times its scale, rounded to FP32. Precondition: as many values as whole rows hold, and no
/// more rows than there are.
void decode_rows(const WeightAt<const std::byte*>& matrix, uint64_t first, std::span<float> values);
/// FP32 values as BF16, to the nearest, of two as near to the even one. The loss is infinite if a finite value is too
/// large.
Loss round_to_bf16(std::span<const float> values, std::span<uint16_t> bf16);

/// The power of two that E8M0 can hold which this is; nullopt: it is none.
[[nodiscard]] std::optional<uint8_t> exact_e8m0(float value);

}  // namespace dspack::kernels
