// Four-bit integers with a BF16 scale for each group of 32 values, as compressed-tensors stores them, on plain memory:
// what repacking writes.
// Threads: thread-safe (pure functions). Errors: none; spans that do not fit are programming errors.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/convert.h"

namespace dspack::kernels {

inline constexpr uint32_t kInt4Group = 32;

/// Whole groups of finite values. Codes are two a byte, the first in the low half; a value is (code - 8) * scale. Of
/// several scales around largest magnitude / 8, some with its opposite sign, a group takes the one with the least
/// squared error, the first of them where several are as good; codes are the nearest. Zeros have scale 1. The result is
/// the same on every processor.
Loss quantise_int4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint16_t> scales);

}  // namespace dspack::kernels
