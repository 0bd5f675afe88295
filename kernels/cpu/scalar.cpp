// The table for any processor: a vector is an array of 16, which the compiler vectorises as it can. The reference for
// the other tables, which must give the same bits.
#include <array>
#include <bit>
#include <cmath>

#include "format/dtype.h"
#include "kernels/cpu/table.inl.h"

namespace dspack::kernels {
namespace {

/// value(code) / 256. Reimplemented here to be constexpr.
constexpr float decode_e4m3_over_256(uint32_t code) {
  const uint32_t exponent = (code >> 3) & 0xf;
  const uint32_t mantissa = code & 0x7;
  const float sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
  if ((code & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000U);
  const uint32_t shift = exponent == 0 ? 0 : exponent - 1;  // bias 7: 2^-6 for subnormal and first normal
  const uint32_t significand = (exponent == 0 ? mantissa : 8 + mantissa) << shift;  // in units of 2^-9
  return sign * static_cast<float>(significand) / 131072.0F;                        // 2^-9 / 256
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 256; ++code)
    table[code] = decode_e4m3_over_256(code);
  return table;
}
constexpr std::array<float, 256> kE4m3Over256 = make_e4m3_table();

struct VecArray {
  static constexpr uint32_t kTileOutputs = 2;
  static constexpr uint32_t kTileRows = 2;
  static constexpr uint32_t kTileColumns = 2;
  static constexpr uint32_t kPanelVectors = 1;
  static constexpr uint32_t kPanelTileRows = 2;
  static constexpr bool kPairsNibbles = false;

  float v[kLanes];

  template <class Function>
  static VecArray each(Function function) {
    VecArray result;
    for (uint32_t l = 0; l < kLanes; ++l)
      result.v[l] = function(l);
    return result;
  }
  static uint16_t word(const std::byte* from, uint32_t index) {
    uint16_t bits = 0;
    __builtin_memcpy(&bits, from + size_t{index} * 2, sizeof bits);
    return bits;
  }

  static VecArray zero() { return set(0); }
  static VecArray set(float value) {
    return each([&](uint32_t) { return value; });
  }
  static VecArray load(const float* from) {
    return each([&](uint32_t l) { return from[l]; });
  }
  /// Unaligned: scales of packed codes may lie at any address.
  static VecArray load_f32(const std::byte* from) {
    VecArray result;
    __builtin_memcpy(&result.v, from, sizeof result.v);
    return result;
  }
  static VecArray load_bf16(const std::byte* from) {
    return each([&](uint32_t l) { return std::bit_cast<float>(uint32_t{word(from, l)} << 16); });
  }
  static VecArray load_f16(const std::byte* from) {
    return each([&](uint32_t l) { return f16_to_f32(word(from, l)); });
  }
  static VecArray load_i8(const std::byte* from) {
    return each([&](uint32_t l) { return static_cast<float>(static_cast<int8_t>(from[l])); });
  }
  static VecArray load_nibbles(const std::byte* from, const int8_t (&values)[16]) {
    return each([&](uint32_t l) {
      return static_cast<float>(values[std::to_integer<uint32_t>(from[l / 2]) >> (l % 2 * 4) & 0xf]);
    });
  }
  static void nibble_columns(const VecArray& codes, const int8_t (&values)[16], VecArray (&columns)[8]) {
    for (uint32_t i = 0; i < 8; ++i) {
      columns[i] = each(
          [&](uint32_t l) { return static_cast<float>(values[std::bit_cast<uint32_t>(codes.v[l]) >> (4 * i) & 0xf]); });
    }
  }
  static VecArray load_e4m3_over_256(const std::byte* from) {
    return each([&](uint32_t l) { return kE4m3Over256[std::to_integer<uint8_t>(from[l])]; });
  }

  static VecArray load_e4m3_unmended(const std::byte* from) { return load_e4m3_over_256(from); }

  static VecArray fma(const VecArray& a, const VecArray& b, const VecArray& c) {
    return each([&](uint32_t l) { return std::fma(a.v[l], b.v[l], c.v[l]); });
  }
  static VecArray add(const VecArray& a, const VecArray& b) {
    return each([&](uint32_t l) { return a.v[l] + b.v[l]; });
  }
  static VecArray sub(const VecArray& a, const VecArray& b) {
    return each([&](uint32_t l) { return a.v[l] - b.v[l]; });
  }
  static VecArray mul(const VecArray& a, const VecArray& b) {
    return each([&](uint32_t l) { return a.v[l] * b.v[l]; });
  }
  static VecArray div(const VecArray& a, const VecArray& b) {
    return each([&](uint32_t l) { return a.v[l] / b.v[l]; });
  }
  static VecArray min(const VecArray& a, const VecArray& b) {
    return each([&](uint32_t l) { return a.v[l] < b.v[l] ? a.v[l] : b.v[l]; });
  }
  static VecArray max(const VecArray& a, const VecArray& b) {
    return each([&](uint32_t l) { return a.v[l] > b.v[l] ? a.v[l] : b.v[l]; });
  }
  static VecArray power_of_two(const VecArray& n) {  // the low bits of n + 127 + 1.5 * 2^23 hold n + 127
    return each([&](uint32_t l) {
      return std::bit_cast<float>(std::bit_cast<uint32_t>(n.v[l] + (12582912.0F + 127.0F)) << 23);
    });
  }

  static void transpose(VecArray (&m)[kLanes]) {
    for (uint32_t i = 0; i < kLanes; ++i) {
      for (uint32_t j = 0; j < i; ++j) {
        const float above = m[j].v[i];
        m[j].v[i] = m[i].v[j];
        m[i].v[j] = above;
      }
    }
  }

  struct NanWatch {
    static constexpr bool kNeeded = true;
    bool seen = false;
    void see(const std::byte* codes) {
      for (uint32_t i = 0; i < 4 * kLanes; ++i)
        seen |= (codes[i] & std::byte{0x7f}) == std::byte{0x7f};
    }
    [[nodiscard]] bool found() const { return seen; }
  };

  void store(float* to) const {
    for (uint32_t l = 0; l < kLanes; ++l)
      to[l] = v[l];
  }
  [[nodiscard]] float first() const { return v[0]; }
  [[nodiscard]] float sum() const {
    VecArray part = *this;
    for (uint32_t apart = kLanes / 2; apart > 0; apart /= 2) {
      for (uint32_t l = 0; l < apart; ++l)
        part.v[l] += part.v[l + apart];
    }
    return part.v[0];
  }
};

}  // namespace

constinit const CpuOps kScalarOps = make_table<VecArray>("scalar");

}  // namespace dspack::kernels
