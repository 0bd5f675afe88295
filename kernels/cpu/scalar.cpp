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
  static constexpr bool kHasSums = false;
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

  // Integers: 64 bytes, or 16 sums (int8.inl.h).
  static constexpr uint32_t kInt8Vectors = 1;
  static constexpr uint32_t kInt8Rows = 1;
  static constexpr uint32_t kInt8StreamRows = 1;
  static constexpr int32_t kByteZero = 0;
  struct Bytes {
    int8_t at[4 * kLanes];
  };
  struct Sums {
    int32_t at[kLanes];
  };
  template <class Function>
  static Sums each_sum(Function function) {
    Sums sums;
    for (uint32_t l = 0; l < kLanes; ++l)
      sums.at[l] = function(l);
    return sums;
  }
  static Bytes load_bytes(const void* from) {
    Bytes bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return bytes;
  }
  static Sums set_sums(int32_t value) {
    return each_sum([&](uint32_t) { return value; });
  }
  static Sums bits_of(const VecArray& v) { return std::bit_cast<Sums>(v); }
  static VecArray of_bits(const Bytes& bytes) { return std::bit_cast<VecArray>(bytes); }
  static VecArray floats_of(const Sums& sums) {
    return each([&](uint32_t l) { return static_cast<float>(sums.at[l]); });
  }
  static Sums add_sums(const Sums& a, const Sums& b) {
    return each_sum([&](uint32_t l) { return a.at[l] + b.at[l]; });
  }
  static Sums times_short(const Sums& a, const Sums& b) {
    return each_sum([&](uint32_t l) { return a.at[l] * b.at[l]; });
  }
  static Bytes low_nibbles(Bytes bytes) {
    for (int8_t& byte : bytes.at)
      byte = static_cast<int8_t>(byte & 0xf);
    return bytes;
  }
  static Bytes high_nibbles(Bytes bytes) {
    for (int8_t& byte : bytes.at)
      byte = static_cast<int8_t>(static_cast<uint8_t>(byte) >> 4U);
    return bytes;
  }
  static Bytes byte_codes(const Bytes& bytes) { return bytes; }
  static Sums dot_bytes(const Bytes& codes, const Bytes& x, Sums sums) {
    for (uint32_t i = 0; i < 4 * kLanes; ++i)
      sums.at[i / 4] += codes.at[i] * x.at[i];
    return sums;
  }
  static Sums dot_nibbles(const Bytes& codes, const Bytes& x, const Sums& sums) { return dot_bytes(codes, x, sums); }
  static int32_t quarter(const Sums& sums, uint32_t index) {
    const int32_t* first = sums.at + size_t{4} * index;
    return first[0] + first[1] + first[2] + first[3];
  }
  static Sums pair_quarters(const Sums& a, const Sums& b) {
    return each_sum([&](uint32_t l) {
      const Sums& from = l < 8 ? a : b;
      const uint32_t first = l / 4 % 2 * 8 + l % 4;
      return from.at[first] + from.at[first + 4];
    });
  }
  static Sums sum_quarters(const Sums& a, const Sums& b, const Sums& c, const Sums& d) {
    const Sums* const all[] = {&a, &b, &c, &d};
    return each_sum([&](uint32_t l) { return quarter(*all[l / 4], l % 4); });
  }
  static VecArray quarters(const float* a, const float* b, const float* c, const float* d) {
    const float* const all[] = {a, b, c, d};
    return each([&](uint32_t l) { return all[l / 4][l % 4]; });
  }
  static VecArray all_quarters(const float* from) { return quarters(from, from, from, from); }
  static VecArray each_quarter(float a, float b, float c, float d) {
    const float all[] = {a, b, c, d};
    return each([&](uint32_t l) { return all[l / 4]; });
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
