// Decoders of stored elements to FP32 on a CPU, without rounding: one type per coding, and the list of them. For the
// instruction set files only (see table.inl.h). Each type has
//   kCoding       its coding
//   kBits         bits per code
//   kUnit         factor that the loaded value still needs; a power of two, so folding it into the scale is exact
//   kHasLines     load_line returns all four vectors of 64 adjacent codes, more cheaply
//   kHasColumns   columns returns the values of each lane's four bytes: the first codes of all lanes, the second, ..
//   load          16 adjacent codes, using the instruction set's vector V; zero points are not yet subtracted
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

constexpr uint32_t kLanes = 16;

/// For codings that have only `load`.
struct LoadByVector {
  static constexpr bool kHasLines = false;
  static constexpr bool kHasColumns = false;
};

struct LoadF32 : LoadByVector {
  static constexpr Coding kCoding = Coding::f32;
  static constexpr uint32_t kBits = 32;
  static constexpr float kUnit = 1.0F;
  template <class V>
  static V load(const std::byte* from) {
    return V::load_f32(from);
  }
};
struct LoadBf16 : LoadByVector {
  static constexpr Coding kCoding = Coding::bf16;
  static constexpr uint32_t kBits = 16;
  static constexpr float kUnit = 1.0F;
  template <class V>
  static V load(const std::byte* from) {
    return V::load_bf16(from);
  }
};
struct LoadF16 : LoadByVector {
  static constexpr Coding kCoding = Coding::f16;
  static constexpr uint32_t kBits = 16;
  static constexpr float kUnit = 1.0F;
  template <class V>
  static V load(const std::byte* from) {
    return V::load_f16(from);
  }
};
struct LoadE4m3 : LoadByVector {
  static constexpr Coding kCoding = Coding::f8_e4m3;
  static constexpr uint32_t kBits = 8;
  static constexpr float kUnit = 256.0F;  // E4M3 has bias 7, the half that its bits are shifted into has 15
  template <class V>
  static V load(const std::byte* from) {
    return V::load_e4m3_over_256(from);
  }
};
// Same, but a NaN code gives an arbitrary number: for loops that detect NaN codes by other means.
struct LoadE4m3Unmended : LoadE4m3 {
  template <class V>
  static V load(const std::byte* from) {
    return V::load_e4m3_unmended(from);
  }
};

struct LoadI8 : LoadByVector {
  static constexpr Coding kCoding = Coding::i8;
  static constexpr uint32_t kBits = 8;
  static constexpr float kUnit = 1.0F;
  template <class V>
  static V load(const std::byte* from) {
    return V::load_i8(from);
  }
};

/// Four-bit codes, whose values are L::kValues.
template <class L>
struct LoadNibbles : LoadByVector {
  static constexpr uint32_t kBits = 4;
  static constexpr bool kHasColumns = true;
  template <class V>
  static V load(const std::byte* from) {
    return V::load_nibbles(from, L::kValues);
  }
  template <class V>
  static V load_paired(const std::byte* from) {
    return V::load_nibbles_paired(from, L::kValues);
  }
  template <class V>
  static void columns(const V& codes, V (&values)[8]) {
    V::nibble_columns(codes, L::kValues, values);
  }
};
struct LoadI4 : LoadNibbles<LoadI4> {
  static constexpr Coding kCoding = Coding::i4;
  static constexpr float kUnit = 1.0F;
  alignas(16) static constexpr int8_t kValues[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
};
struct LoadE2m1 : LoadNibbles<LoadE2m1> {
  static constexpr Coding kCoding = Coding::e2m1;
  static constexpr float kUnit = 0.5F;  // twice the value is an integer
  alignas(16) static constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};

struct LoadU4 : LoadNibbles<LoadU4> {
  static constexpr Coding kCoding = Coding::u4;
  static constexpr float kUnit = 1.0F;
  alignas(16) static constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};

template <class... L>
struct LoadList {
  static_assert(sizeof...(L) == kCodings);
};
/// In the order of Coding.
using Loads = LoadList<LoadF32, LoadBf16, LoadF16, LoadE4m3, LoadI8, LoadI4, LoadE2m1, LoadU4>;

/// Bytes of `count` adjacent codes: a multiple of 16 codes, or the last codes of a row.
template <class L>
constexpr size_t bytes_for(size_t count) {
  return (count * L::kBits + 7) / 8;
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
