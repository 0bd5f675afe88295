// Four-bit integers with a BF16 scale for each group of 32 values, as compressed-tensors stores them, in plain memory.
// Written by repacking.
// Threads: thread-safe (pure functions). Errors: none; spans that do not fit are programming errors.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/convert.h"

namespace dspack::kernels {

inline constexpr uint32_t kInt4Group = 32;

/// Quantises whole groups of finite values. Two codes per byte, the first in the low half; a value is (code - 8) *
/// scale. Each group takes, of several scales around largest magnitude / 8, some of opposite sign, the one with the
/// least squared error, the first among equals; codes are rounded to nearest. A group of zeros has scale 1. The result
/// is the same on every processor.
Loss quantise_int4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint16_t> scales);

}  // namespace dspack::kernels
