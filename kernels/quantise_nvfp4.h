// NVFP4 on plain memory: E2M1 codes with an E4M3 scale for each group of 16 values and one scale for all, as
// compressed-tensors stores it ("nvfp4-pack-quantized"): what repacking writes.
// Threads: thread-safe (pure functions). Errors: none; spans that do not fit are programming errors.
// Source: OCP Microscaling Formats 1.0 (E2M1); compressed-tensors, compressors/nvfp4_quantized.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/convert.h"

namespace dspack::kernels {

inline constexpr uint32_t kNvfp4Group = 16;
/// By which every scale is divided. One power of two for all matrices: gate and up of an expert have the same one, as
/// programs want it that compute both at once, and a matrix is converted as its bytes come, before its largest value is
/// known. E4M3 holds three digits of a scale from 2^-6 to 448, so the groups whose largest value is from 3.7e-4 to 10.5
/// lose what they would with a scale of their matrix's own; smaller ones lose a little more of the little they are.
inline constexpr float kNvfp4Global = 256.0F;
/// The largest magnitude that has a code: 6 times 448 / kNvfp4Global.
inline constexpr float kNvfp4Largest = 10.5F;

/// Whole groups of finite values of at most kNvfp4Largest. Codes are two a byte, the first in the low half; a value is
/// E2M1 code times scale over kNvfp4Global. Of nine scales around largest magnitude / 6 a group takes the one with the
/// least squared error, the first of them where several are as good; codes are the nearest, of two as near the even
/// one. The result is the same on every processor.
Loss quantise_nvfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales);

/// Values of a stored scale of MXFP4.
inline constexpr uint32_t kMxfp4Group = 32;

/// Whether E4M3 holds each of these scales, times kNvfp4Global: of powers of two those from 2^-17 to 1.
[[nodiscard]] bool nvfp4_holds(std::span<const float> scales);

/// MXFP4 as NVFP4, both E2M1: codes two a byte with one FP32 scale for 32 values. Under a scale that nvfp4_holds both
/// groups of 16 keep their codes, byte for byte, and lose nothing; others are quantised anew. `values`: what codes and
/// scales mean, as quantise_nvfp4 takes them; empty where all scales are held.
Loss mxfp4_to_nvfp4(std::span<const uint8_t> stored, std::span<const float> stored_scales,
                    std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales);

}  // namespace dspack::kernels
