// Codes of four and eight bits with a scale for each small group of values, in plain memory, as compressed-tensors
// stores them. Written by repacking.
//   int4, int8   integers with a BF16 scale for 32 values ("pack-quantized")
//   NVFP4        E2M1 codes with an E4M3 scale for 16 values and one global scale ("nvfp4-pack-quantized")
// Threads: thread-safe (pure functions). Errors: none; spans that do not fit are programming errors.
// Source: OCP Microscaling Formats 1.0 (E2M1); compressed-tensors, compressors/nvfp4_quantized.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/convert.h"

namespace dspack::kernels {

/// Values per scale of int4 and int8.
inline constexpr uint32_t kIntegerGroup = 32;

/// Quantises whole groups of finite values. Two codes per byte, the first in the low half; a value is (code - 8) *
/// scale. Each group takes, of several scales around largest magnitude / 8, some of opposite sign, the one with the
/// least squared error, the first among equals; codes are rounded to nearest. A group of zeros has scale 1. The result
/// is the same on every processor.
Loss quantise_int4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint16_t> scales);

/// Quantises whole groups of finite values. A value is (code - 128) * scale; the scale is the group's largest magnitude
/// / 127, rounded to BF16, and codes are rounded to nearest, ties to even. A group of zeros has scale 1. The result is
/// the same on every processor.
Loss quantise_int8(std::span<const float> values, std::span<uint8_t> codes, std::span<uint16_t> scales);

inline constexpr uint32_t kNvfp4Group = 16;
/// The global scale, a divisor of every group's scale. One power of two serves all matrices: gate and up of an expert
/// need the same one for programs that compute both at once, and a matrix is converted as its bytes arrive, before its
/// largest value is known. E4M3 holds three bits of a scale from 2^-6 to 448, so groups whose largest value is from
/// 3.7e-4 to 10.5 lose no more than with a global scale for their matrix; smaller ones lose slightly more.
inline constexpr float kNvfp4Global = 256.0F;
/// The largest magnitude that has a code: 6 times 448 / kNvfp4Global.
inline constexpr float kNvfp4Largest = 10.5F;

/// Quantises whole groups of finite values of magnitude at most kNvfp4Largest. Two codes per byte, the first in the low
/// half; a value is E2M1 code * scale / kNvfp4Global. Each group takes, of nine scales around largest magnitude / 6,
/// the one with the least squared error, the first among equals. Codes are rounded to nearest, ties to even. The result
/// is the same on every processor.
Loss quantise_nvfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales);

/// Values per stored scale of MXFP4.
inline constexpr uint32_t kMxfp4Group = 32;

/// Whether E4M3 holds each of these scales times kNvfp4Global: among powers of two, those from 2^-17 to 1.
[[nodiscard]] bool nvfp4_holds(std::span<const float> scales);

/// Converts MXFP4 to NVFP4; both use E2M1 codes, two per byte, and `stored_scales` has one FP32 scale per 32 values.
/// Under a scale that nvfp4_holds both groups of 16 keep their codes, byte for byte, without loss; others are
/// requantised from `values`, the decoded values (see quantise_nvfp4), which may be empty if all scales are held.
Loss mxfp4_to_nvfp4(std::span<const uint8_t> stored, std::span<const float> stored_scales,
                    std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales);

}  // namespace dspack::kernels
