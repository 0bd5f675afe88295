// 16 lanes in four registers of NEON. For the instruction set files only (see table.inl.h).
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

struct Vec128x4 {
  static constexpr uint32_t kTileOutputs = 2;
  static constexpr uint32_t kTileRows = 2;  // 16 accumulators, 8 + 4 operands, of 32 registers
  static constexpr uint32_t kTileColumns = 2;
  static constexpr bool kHasSums = false;
  static constexpr uint32_t kPanelVectors = 1;
  static constexpr uint32_t kPanelTileRows = 3;  // 24 sums, 4 + 1 operands: a broadcast value is one register
  static constexpr bool kPairsNibbles = false;

  float32x4_t q0;
  float32x4_t q1;
  float32x4_t q2;
  float32x4_t q3;

  template <class Function, class... Vectors>
  static Vec128x4 each(Function function, Vectors... v) {
    return {function(v.q0...), function(v.q1...), function(v.q2...), function(v.q3...)};
  }

  static Vec128x4 zero() { return set(0); }
  static Vec128x4 set(float value) {
    const float32x4_t all = vdupq_n_f32(value);
    return {all, all, all, all};
  }
  static Vec128x4 load(const float* from) {
    return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
  }
  static Vec128x4 load_f32(const std::byte* from) { return load(reinterpret_cast<const float*>(from)); }
  // Elements of 16 bits may be unaligned, so bytes are loaded.
  static uint16x8_t load_words(const std::byte* from) {
    return vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(from)));
  }
  static Vec128x4 load_bf16(const std::byte* from) {
    const uint16x8_t lo = load_words(from), hi = load_words(from + 16);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(lo), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(lo, 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(hi), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(hi, 16))};
  }
  static Vec128x4 widen_half(float16x8_t lo, float16x8_t hi) {
    return {vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo), vcvt_f32_f16(vget_low_f16(hi)),
            vcvt_high_f32_f16(hi)};
  }
  static Vec128x4 load_f16(const std::byte* from) {
    return widen_half(vreinterpretq_f16_u16(load_words(from)), vreinterpretq_f16_u16(load_words(from + 16)));
  }
  static Vec128x4 widen_i8(int8x16_t codes) {
    const int16x8_t lo = vmovl_s8(vget_low_s8(codes)), hi = vmovl_high_s8(codes);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))};
  }
  static Vec128x4 load_i8(const std::byte* from) { return widen_i8(vld1q_s8(reinterpret_cast<const int8_t*>(from))); }
  // Looks up the nibbles of eight bytes, low half first.
  static Vec128x4 load_nibbles(const std::byte* from, const int8_t (&values)[16]) {
    const uint8x8_t bytes = vld1_u8(reinterpret_cast<const uint8_t*>(from));
    const uint8x8_t low = vand_u8(bytes, vdup_n_u8(0xf)), high = vshr_n_u8(bytes, 4);
    return widen_i8(vqtbl1q_s8(vld1q_s8(values), vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high))));
  }
  // Looks up the low and the high nibbles of every four bytes; then each byte of the results becomes a vector.
  static void nibble_columns(Vec128x4 codes, const int8_t (&values)[16], Vec128x4 (&columns)[8]) {
    const int8x16_t table = vld1q_s8(values);
    const auto low = [table](float32x4_t bytes) {
      return vreinterpretq_f32_s8(vqtbl1q_s8(table, vandq_u8(vreinterpretq_u8_f32(bytes), vdupq_n_u8(0xf))));
    };
    const auto high = [table](float32x4_t bytes) {
      return vreinterpretq_f32_s8(vqtbl1q_s8(table, vshrq_n_u8(vreinterpretq_u8_f32(bytes), 4)));
    };
    const Vec128x4 found[2] = {each(low, codes), each(high, codes)};
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; ++i) {
      const int32x4_t up = vdupq_n_s32(static_cast<int32_t>(24 - 8 * (i / 2)));
      const auto value = [up](float32x4_t bytes) {
        return vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(vreinterpretq_s32_f32(bytes), up), 24));
      };
      columns[i] = each(value, found[i % 2]);
    }
  }
  // As in avx2.inl.h: s eeee mmm becomes the half s 0eeee mmm0000000, which is value / 256. The sign comes from sign
  // extension; the mask clears its second copy. NaN codes become 480 / 256 unless they are replaced by a half that is
  // NaN.
  static uint16x8_t mask_e4m3(int16x8_t wide) {
    return vandq_u16(vreinterpretq_u16_s16(wide), vdupq_n_u16(0xbfff));
  }
  static uint16x8_t mend_e4m3(uint16x8_t half) {
    const uint16x8_t magnitude = vandq_u16(half, vdupq_n_u16(0x7fff));
    return vorrq_u16(half, vceqq_u16(magnitude, vdupq_n_u16(0x7f << 7)));
  }
  static Vec128x4 load_e4m3_unmended(const std::byte* from) {
    const int8x16_t codes = vld1q_s8(reinterpret_cast<const int8_t*>(from));
    return widen_half(vreinterpretq_f16_u16(mask_e4m3(vshll_n_s8(vget_low_s8(codes), 7))),
                      vreinterpretq_f16_u16(mask_e4m3(vshll_high_n_s8(codes, 7))));
  }
  static Vec128x4 load_e4m3_over_256(const std::byte* from) {
    const int8x16_t codes = vld1q_s8(reinterpret_cast<const int8_t*>(from));
    return widen_half(vreinterpretq_f16_u16(mend_e4m3(mask_e4m3(vshll_n_s8(vget_low_s8(codes), 7)))),
                      vreinterpretq_f16_u16(mend_e4m3(mask_e4m3(vshll_high_n_s8(codes, 7)))));
  }

  static Vec128x4 fma(Vec128x4 a, Vec128x4 b, Vec128x4 c) {  // the instruction adds to its first operand
    return each([](auto x, auto y, auto z) { return vfmaq_f32(z, x, y); }, a, b, c);
  }
  static Vec128x4 add(Vec128x4 a, Vec128x4 b) {
    return each([](auto x, auto y) { return vaddq_f32(x, y); }, a, b);
  }
  static Vec128x4 sub(Vec128x4 a, Vec128x4 b) {
    return each([](auto x, auto y) { return vsubq_f32(x, y); }, a, b);
  }
  static Vec128x4 mul(Vec128x4 a, Vec128x4 b) {
    return each([](auto x, auto y) { return vmulq_f32(x, y); }, a, b);
  }
  static Vec128x4 div(Vec128x4 a, Vec128x4 b) {
    return each([](auto x, auto y) { return vdivq_f32(x, y); }, a, b);
  }
  // Not vminq_f32 and vmaxq_f32, which return NaN if either operand is NaN, and distinguish -0 from 0.
  static Vec128x4 min(Vec128x4 a, Vec128x4 b) {
    return each([](auto x, auto y) { return vbslq_f32(vcltq_f32(x, y), x, y); }, a, b);
  }
  static Vec128x4 max(Vec128x4 a, Vec128x4 b) {
    return each([](auto x, auto y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }, a, b);
  }
  static Vec128x4 power_of_two(Vec128x4 n) {  // the low bits of n + 127 + 1.5 * 2^23 hold n + 127
    const auto power = [](float32x4_t x) {
      const float32x4_t biased = vaddq_f32(x, vdupq_n_f32(12582912.0F + 127.0F));
      return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(biased), 23));
    };
    return each(power, n);
  }

  static void transpose_4(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
    const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b)),
                      ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    const float64x2_t cd_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d)),
                      cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    a = vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even));
    b = vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd));
    c = vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even));
    d = vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd));
  }
  // Four vectors hold four squares. Each square is transposed; then square j of vectors 4 i .. becomes square i of
  // vectors 4 j ...
  static void transpose(Vec128x4 (&m)[16]) {
    float32x4_t squares[4][4][4];  // vectors, registers, rows
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; ++i) {
      squares[i / 4][0][i % 4] = m[i].q0;
      squares[i / 4][1][i % 4] = m[i].q1;
      squares[i / 4][2][i % 4] = m[i].q2;
      squares[i / 4][3][i % 4] = m[i].q3;
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; ++i) {
      float32x4_t(&square)[4] = squares[i / 4][i % 4];
      transpose_4(square[0], square[1], square[2], square[3]);
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; ++i)
      m[i] = {squares[0][i / 4][i % 4], squares[1][i / 4][i % 4], squares[2][i / 4][i % 4], squares[3][i / 4][i % 4]};
  }

  // Integers: 64 bytes, or 16 sums (int8.inl.h).
  static constexpr uint32_t kInt8Vectors = 1;
  static constexpr uint32_t kInt8Rows = 2;  // 8 sums and 8 totals, 4 + 1 operands
  static constexpr uint32_t kInt8StreamRows = 2;
  static constexpr int32_t kByteZero = 0;
  struct Bytes {
    int8x16_t q[4];
  };
  struct Sums {
    int32x4_t q[4];
  };
  template <class To, class Function, class... From>
  static To map(Function function, const From&... from) {
    To to;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; ++i)
      to.q[i] = function(from.q[i]...);
    return to;
  }
  static Bytes load_bytes(const void* from) {
    const auto* at = static_cast<const int8_t*>(from);
    return {{vld1q_s8(at), vld1q_s8(at + 16), vld1q_s8(at + 32), vld1q_s8(at + 48)}};
  }
  static Sums set_sums(int32_t value) {
    const int32x4_t all = vdupq_n_s32(value);
    return {{all, all, all, all}};
  }
  static Sums bits_of(Vec128x4 v) {
    return {{vreinterpretq_s32_f32(v.q0), vreinterpretq_s32_f32(v.q1), vreinterpretq_s32_f32(v.q2),
             vreinterpretq_s32_f32(v.q3)}};
  }
  static Vec128x4 of_bits(Bytes b) {
    return {vreinterpretq_f32_s8(b.q[0]), vreinterpretq_f32_s8(b.q[1]), vreinterpretq_f32_s8(b.q[2]),
            vreinterpretq_f32_s8(b.q[3])};
  }
  static Vec128x4 floats_of(Sums s) {
    return {vcvtq_f32_s32(s.q[0]), vcvtq_f32_s32(s.q[1]), vcvtq_f32_s32(s.q[2]), vcvtq_f32_s32(s.q[3])};
  }
  static Sums add_sums(Sums a, Sums b) {
    return map<Sums>([](int32x4_t x, int32x4_t y) { return vaddq_s32(x, y); }, a, b);
  }
  static Sums times_short(Sums a, Sums b) {
    return map<Sums>([](int32x4_t x, int32x4_t y) { return vmulq_s32(x, y); }, a, b);
  }
  static Bytes low_nibbles(Bytes b) {
    return map<Bytes>([](int8x16_t x) { return vandq_s8(x, vdupq_n_s8(0xf)); }, b);
  }
  static Bytes high_nibbles(Bytes b) {
    return map<Bytes>([](int8x16_t x) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4)); }, b);
  }
  static Bytes byte_codes(Bytes b) {
    return b;
  }
#ifdef __ARM_FEATURE_DOTPROD
  static int32x4_t dot(int8x16_t codes, int8x16_t x, int32x4_t sums) {
    return vdotq_s32(sums, codes, x);
  }
#else
  // A pair's products, at most 2 * 128 * 127, fit 16 bits.
  static int32x4_t dot(int8x16_t codes, int8x16_t x, int32x4_t sums) {
    const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(x)), high = vmull_high_s8(codes, x);
    return vpadalq_s16(sums, vpaddq_s16(low, high));
  }
#endif
  static Sums dot_bytes(Bytes codes, Bytes x, Sums sums) {
    return map<Sums>([](int8x16_t c, int8x16_t v, int32x4_t s) { return dot(c, v, s); }, codes, x, sums);
  }
  static Sums dot_nibbles(Bytes codes, Bytes x, Sums sums) {
    return dot_bytes(codes, x, sums);
  }
  static Sums pair_quarters(Sums a, Sums b) {
    return {
        {vaddq_s32(a.q[0], a.q[1]), vaddq_s32(a.q[2], a.q[3]), vaddq_s32(b.q[0], b.q[1]), vaddq_s32(b.q[2], b.q[3])}};
  }
  static Sums sum_quarters(Sums a, Sums b, Sums c, Sums d) {
    const auto sums = [](const Sums& s) { return vpaddq_s32(vpaddq_s32(s.q[0], s.q[1]), vpaddq_s32(s.q[2], s.q[3])); };
    return {{sums(a), sums(b), sums(c), sums(d)}};
  }
  static Vec128x4 quarters(const float* a, const float* b, const float* c, const float* d) {
    return {vld1q_f32(a), vld1q_f32(b), vld1q_f32(c), vld1q_f32(d)};
  }
  static Vec128x4 all_quarters(const float* from) {
    return quarters(from, from, from, from);
  }
  static Vec128x4 each_quarter(float a, float b, float c, float d) {
    return {vdupq_n_f32(a), vdupq_n_f32(b), vdupq_n_f32(c), vdupq_n_f32(d)};
  }

  struct NanWatch {
    static constexpr bool kNeeded = true;
    uint8x16_t seen = vdupq_n_u8(0);
    static uint8x16_t nan_codes(const std::byte* codes) {
      const uint8x16_t bits = vorrq_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(codes)), vdupq_n_u8(0x80));
      return vceqq_u8(bits, vdupq_n_u8(0xff));
    }
    void see(const std::byte* codes) {  // 64 codes
      seen = vorrq_u8(seen, vorrq_u8(vorrq_u8(nan_codes(codes), nan_codes(codes + 16)),
                                     vorrq_u8(nan_codes(codes + 32), nan_codes(codes + 48))));
    }
    [[nodiscard]] bool found() const { return vmaxvq_u8(seen) != 0; }
  };

  void store(float* to) const {
    vst1q_f32(to, q0);
    vst1q_f32(to + 4, q1);
    vst1q_f32(to + 8, q2);
    vst1q_f32(to + 12, q3);
  }
  [[nodiscard]] float first() const {
    return vgetq_lane_f32(q0, 0);
  }
  [[nodiscard]] float sum() const {
    const float32x4_t by4 = vaddq_f32(vaddq_f32(q0, q2), vaddq_f32(q1, q3));
    const float32x2_t by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
    return vget_lane_f32(by2, 0) + vget_lane_f32(by2, 1);
  }
};

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
