// Conversions between storage forms of weights, in plain memory, for repacking.
// Threads: thread-safe (pure functions). Errors: none; spans that do not fit are programming errors.
// Source: DeepSeek-V3, inference/kernel.py (weight_dequant, act_quant) and fp8_cast_bf16.py; OCP Microscaling
// Formats 1.0 for E8M0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/weight.h"

namespace dspack::kernels {

/// Rounding error: sums over values of (stored - meant)^2 and of meant^2, in FP64, in the order of the calls.
struct Loss {
  double squared_error = 0;
  double squared_value = 0;
  Loss& operator+=(const Loss& other) {
    squared_error += other.squared_error;
    squared_value += other.squared_value;
    return *this;
  }
};

/// Dequantises rows of FP8 E4M3 values [rows, columns] that share `scales`, one per `block` columns, ceil(columns /
/// block) in all: FP32 products, rounded to BF16 or kept. The output has as many values as `rows`. The loss is infinite
/// if a finite product overflows the stored type.
Loss dequantise_rows(std::span<const uint8_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                     std::span<uint16_t> bf16);
Loss dequantise_rows(std::span<const uint8_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                     std::span<float> f32);

/// Computes the scales of up to `block` rows of BF16 values [rows, columns]: a block's largest magnitude / 448, E4M3's
/// largest value; 1 for a block of zeros. False if a value is NaN or infinite.
[[nodiscard]] bool block_scales(std::span<const uint16_t> rows, uint64_t columns, uint64_t block,
                                std::span<float> scales);
/// Quantises these rows to E4M3: value / scale, rounded to nearest, ties to even.
Loss quantise_rows(std::span<const uint16_t> rows, uint64_t columns, std::span<const float> scales, uint64_t block,
                   std::span<uint8_t> fp8);

/// Decodes whole rows of a matrix in host memory to FP32, from row `first` on: (code - zero point, if any) * scale,
/// rounded to FP32. Precondition: `values` holds a whole number of rows, all within the matrix.
void decode_rows(const WeightAt<const std::byte*>& matrix, uint64_t first, std::span<float> values);
/// Whether no magnitude is above `largest`, and none NaN.
[[nodiscard]] bool are_within(std::span<const float> values, float largest);
/// Rounds FP32 values to BF16, to nearest, ties to even. The loss is infinite if a finite value overflows.
Loss round_to_bf16(std::span<const float> values, std::span<uint16_t> bf16);

/// The E8M0 code of exactly this value; nullopt if it is not a power of two that E8M0 holds.
[[nodiscard]] std::optional<uint8_t> exact_e8m0(float value);

}  // namespace dspack::kernels
