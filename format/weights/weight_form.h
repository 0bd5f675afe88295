// A stored matrix in memory, on any device: how its elements are coded, and the planes (dense arrays) that hold them
// and their scales. No other file knows how many bytes those take.
// To add a coding: an enumerator and a line of kCodingTable here, and what kernels/weight.h says. To add a way to store
// scales: an enumerator and its lines here, likewise. Threads: pure functions. Errors: none; dimensions are below 2^31.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "format/dtype.h"

namespace dspack::format {

/// The meaning of an element's code. Every operation on weights has a kernel for each coding. Codes of four bits are
/// packed two per byte, the first in the low half. i4: the code less 8. e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their
/// negatives with bit 3 set (OCP Microscaling Formats 1.0, section 5.3.3). u4: the code less the zero point of its
/// block, which is also an integer.
enum class Coding : uint8_t { f32, bf16, f16, f8_e4m3, i8, i4, e2m1, u4 };
inline constexpr size_t kCodings = 8;

struct CodingFacts {
  std::string_view name;
  std::optional<Dtype> dtype;  // type of tensors whose elements are such codes
  uint32_t bits = 0;           // per code
  /// Alignment of the first code in bytes. Processors read 16-bit codes at any byte, since an ordinary checkpoint may
  /// have them there; in a GPU's memory every plane is laid out in whole lines.
  uint32_t alignment = 1;
  bool has_zeros = false;  // each block has a zero point and a scale
};
inline constexpr CodingFacts kCodingTable[kCodings] = {
    {.name = "F32", .dtype = Dtype::f32, .bits = 32, .alignment = 4},
    {.name = "BF16", .dtype = Dtype::bf16, .bits = 16, .alignment = 1},
    {.name = "F16", .dtype = Dtype::f16, .bits = 16, .alignment = 1},
    {.name = "F8_E4M3", .dtype = Dtype::f8_e4m3, .bits = 8, .alignment = 1},
    {.name = "I8", .dtype = Dtype::i8, .bits = 8, .alignment = 1},
    {.name = "I4", .dtype = std::nullopt, .bits = 4, .alignment = 1},
    {.name = "E2M1", .dtype = std::nullopt, .bits = 4, .alignment = 1},
    {.name = "U4", .dtype = std::nullopt, .bits = 4, .alignment = 1, .has_zeros = true},
};

[[nodiscard]] constexpr const CodingFacts& facts_of(Coding coding) {
  return kCodingTable[static_cast<size_t>(coding)];
}

/// Whether a byte holds several codes. Blocks of scales are then whole vectors of kPackedRun columns, or whole rows.
[[nodiscard]] constexpr bool is_packed(Coding coding) {
  return facts_of(coding).bits < 8;
}
inline constexpr uint32_t kPackedRun = 16;

/// The coding of a tensor whose elements are codes; nullopt: no kernel multiplies by such a tensor.
[[nodiscard]] constexpr std::optional<Coding> coding_of(Dtype dtype) {
  for (size_t i = 0; i < kCodings; ++i) {
    if (kCodingTable[i].dtype == dtype) return static_cast<Coding>(i);
  }
  return std::nullopt;
}

/// Codes in 16 bytes, which a lane of a GPU reads at once.
[[nodiscard]] constexpr uint32_t codes_in_16_bytes(Coding coding) {
  return 128 / facts_of(coding).bits;
}

/// Bytes of `count` packed codes. A row of a matrix takes whole bytes.
[[nodiscard]] constexpr uint64_t code_bytes(Coding coding, uint64_t count) {
  return (count * facts_of(coding).bits + 7) / 8;
}

/// How scales are stored. A scale's value is exactly that of its element, then multiplied or divided by the matrix's
/// global scale and rounded to FP32.
enum class ScaleCoding : uint8_t { f32, bf16, f16, f8_e4m3, f8_e8m0 };
enum class GlobalScale : uint8_t { none, times, over };

/// The coding of a tensor of scales; nullopt: no kernel knows such scales.
[[nodiscard]] constexpr std::optional<ScaleCoding> scale_coding_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return ScaleCoding::f32;
    case Dtype::bf16: return ScaleCoding::bf16;
    case Dtype::f16: return ScaleCoding::f16;
    case Dtype::f8_e4m3: return ScaleCoding::f8_e4m3;
    case Dtype::f8_e8m0: return ScaleCoding::f8_e8m0;
    default: return std::nullopt;
  }
}

/// Bytes of a scale, which are also its alignment.
[[nodiscard]] constexpr uint32_t scale_bytes(ScaleCoding coding) {
  return coding == ScaleCoding::f32 ? 4 : coding == ScaleCoding::bf16 || coding == ScaleCoding::f16 ? 2 : 1;
}

// The contents of the planes.
inline constexpr size_t kCodes = 0;   // [out, in], row-major and dense, each row begins a new byte
inline constexpr size_t kScales = 1;  // [ceil(out / block_out), ceil(in / block_in)], row-major
inline constexpr size_t kGlobal = 2;  // one FP32
inline constexpr size_t kZeros = 3;   // U8, in the order of the scales
inline constexpr size_t kPlanes = 4;

/// The form of a matrix [out, in]: an element's value is its code's times the scale of its block (the last block of a
/// row or column may be ragged). Block sizes cover every granularity in the family: 128 x 128 as released, 1 x in per
/// channel, out x in per tensor, 1 x group.
struct WeightForm {
  Coding coding = Coding::f32;
  uint32_t out = 0;
  uint32_t in = 0;
  uint32_t block_out = 0;  // rows and columns that share a scale; 0: no scales
  uint32_t block_in = 0;
  ScaleCoding scale = ScaleCoding::f32;
  GlobalScale global = GlobalScale::none;

  [[nodiscard]] bool operator==(const WeightForm&) const = default;
};

/// A matrix with the places of its planes: slices of buffers, or addresses. Empty: it has no such plane.
template <class Place>
struct WeightAt : WeightForm {
  Place planes[kPlanes] = {};
};

struct PlaneSize {
  uint64_t bytes = 0;  // 0: the form has no such plane
  uint32_t alignment = 1;
};

[[nodiscard]] constexpr PlaneSize plane_size(const WeightForm& form, size_t plane) {
  if (plane == kCodes) return {form.out * code_bytes(form.coding, form.in), facts_of(form.coding).alignment};
  if (form.block_out == 0) return {};
  if (plane == kGlobal) return {form.global == GlobalScale::none ? 0 : sizeof(float), alignof(float)};
  const uint64_t down = (uint64_t{form.out} + form.block_out - 1) / form.block_out;
  const uint64_t across = (uint64_t{form.in} + form.block_in - 1) / form.block_in;
  if (plane == kZeros) return {facts_of(form.coding).has_zeros ? down * across : 0, 1};
  const uint32_t bytes = scale_bytes(form.scale);
  return {down * across * bytes, bytes};
}

}  // namespace dspack::format
