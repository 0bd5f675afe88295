// 16 lanes in two registers of AVX2, with FMA and F16C. For the instruction set files only (see table.inl.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

struct Vec256x2 {
  static constexpr uint32_t kTileOutputs = 2;
  static constexpr uint32_t kTileRows = 2;  // 8 accumulators, 4 + 2 operands, of 16 registers
  static constexpr uint32_t kTileColumns = 2;
  static constexpr bool kHasSums = false;
  static constexpr uint32_t kPanelVectors = 1;
  static constexpr uint32_t kPanelTileRows = 3;  // 12 sums, 2 + 1 operands
  static constexpr bool kPairsNibbles = false;

  __m256 lo;
  __m256 hi;

  static Vec256x2 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec256x2 set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Vec256x2 load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static Vec256x2 load_f32(const std::byte* from) { return load(reinterpret_cast<const float*>(from)); }
  static __m256 widen_bf16(const std::byte* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Vec256x2 load_bf16(const std::byte* from) { return {widen_bf16(from), widen_bf16(from + 16)}; }
  static Vec256x2 load_f16(const std::byte* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)))};
  }
  static __m256 widen_i8(const std::byte* from) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  }
  static Vec256x2 load_i8(const std::byte* from) { return {widen_i8(from), widen_i8(from + 8)}; }
  // Looks up the nibbles of eight bytes, low half first.
  static Vec256x2 load_nibbles(const std::byte* from, const int8_t (&values)[16]) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const __m128i pairs = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(values));
    const __m128i found = _mm_shuffle_epi8(table, _mm_and_si128(pairs, _mm_set1_epi8(0xf)));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(found)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(found, found)))};
  }
  // Looks up the low and the high nibbles of every four bytes; then each byte of the results becomes a vector.
  static void nibble_columns(const Vec256x2& codes, const int8_t (&values)[16], Vec256x2 (&columns)[8]) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
    const __m256i mask = _mm256_set1_epi8(0xf);
    const __m256i bytes[2] = {_mm256_castps_si256(codes.lo), _mm256_castps_si256(codes.hi)};
    __m256i found[2][2];
    for (uint32_t h = 0; h < 2; ++h) {
      found[h][0] = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes[h], mask));
      found[h][1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes[h], 4), mask));
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; ++i) {
      const auto value = [&](__m256i looked_up) {
        const __m256i up = _mm256_slli_epi32(looked_up, static_cast<int>(24 - 8 * (i / 2)));
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(up, 24));
      };
      columns[i] = {value(found[0][i % 2]), value(found[1][i % 2])};
    }
  }
  // s eeee mmm becomes the half s 0eeee mmm0000000, which is value / 256 for normal and subnormal codes alike. The sign
  // comes from sign extension; the mask clears its second copy. NaN codes become 480 / 256 unless they are replaced by
  // a half that is NaN.
  static Vec256x2 widen_half(__m256i bits) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
  }
  static __m256i shift_e4m3(const std::byte* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  }
  static Vec256x2 load_e4m3_unmended(const std::byte* from) {
    return widen_half(shift_e4m3(from));
  }
  static Vec256x2 load_e4m3_over_256(const std::byte* from) {
    const __m256i half = shift_e4m3(from);
    const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f << 7));
    return widen_half(_mm256_or_si256(half, nan));
  }

  static Vec256x2 fma(Vec256x2 a, Vec256x2 b, Vec256x2 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static Vec256x2 add(Vec256x2 a, Vec256x2 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  static Vec256x2 sub(Vec256x2 a, Vec256x2 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  static Vec256x2 mul(Vec256x2 a, Vec256x2 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  static Vec256x2 div(Vec256x2 a, Vec256x2 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  static Vec256x2 min(Vec256x2 a, Vec256x2 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  static Vec256x2 max(Vec256x2 a, Vec256x2 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  static __m256 half_power_of_two(__m256 n) {  // the low bits of n + 127 + 1.5 * 2^23 hold n + 127
    const __m256 biased = _mm256_add_ps(n, _mm256_set1_ps(12582912.0F + 127.0F));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(biased), 23));
  }
  static Vec256x2 power_of_two(Vec256x2 n) {
    return {half_power_of_two(n.lo), half_power_of_two(n.hi)};
  }

  static void transpose_8(__m256 (&m)[8]) {
    __m256 a[8], b[8];
    for (uint32_t i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
      a[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
    }
    for (uint32_t i = 0; i < 8; i += 4) {
      for (uint32_t j = 0; j < 2; ++j) {
        const __m256d low = _mm256_castps_pd(a[i + j]), high = _mm256_castps_pd(a[i + j + 2]);
        b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
        b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
      }
    }
    for (uint32_t j = 0; j < 4; ++j) {
      m[j] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x20);
      m[j + 4] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x31);
    }
  }
  static void transpose(Vec256x2 (&m)[16]) {
    __m256 quarters[2][2][8];  // rows, columns
    for (uint32_t i = 0; i < 16; ++i) {
      quarters[i / 8][0][i % 8] = m[i].lo;
      quarters[i / 8][1][i % 8] = m[i].hi;
    }
    for (auto& rows : quarters) {
      for (auto& quarter : rows)
        transpose_8(quarter);
    }
    for (uint32_t i = 0; i < 16; ++i)
      m[i] = {quarters[0][i / 8][i % 8], quarters[1][i / 8][i % 8]};
  }

  // Integers: 64 bytes, or 16 sums (int8.inl.h).
  static constexpr uint32_t kInt8Vectors = 1;
  static constexpr uint32_t kInt8Rows = 2;  // 4 sums and 4 totals, 2 + 1 operands, ones
  static constexpr uint32_t kInt8StreamRows = 2;
  static constexpr int32_t kByteZero = 0;
  struct Bytes {
    __m256i lo;
    __m256i hi;
  };
  using Sums = Bytes;
  static Bytes load_bytes(const void* from) {
    const auto* at = static_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
  }
  static Sums set_sums(int32_t value) {
    return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
  }
  static Sums bits_of(Vec256x2 v) {
    return {_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)};
  }
  static Vec256x2 of_bits(Bytes b) {
    return {_mm256_castsi256_ps(b.lo), _mm256_castsi256_ps(b.hi)};
  }
  static Vec256x2 floats_of(Sums s) {
    return {_mm256_cvtepi32_ps(s.lo), _mm256_cvtepi32_ps(s.hi)};
  }
  static Sums add_sums(Sums a, Sums b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  static Sums times_short(Sums a, Sums b) {
    return {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
  }
  static Bytes low_nibbles(Bytes b) {
    const __m256i mask = _mm256_set1_epi8(0xf);
    return {_mm256_and_si256(b.lo, mask), _mm256_and_si256(b.hi, mask)};
  }
  static Bytes high_nibbles(Bytes b) {
    return low_nibbles({_mm256_srli_epi16(b.lo, 4), _mm256_srli_epi16(b.hi, 4)});
  }
  static Bytes byte_codes(Bytes b) {
    return b;
  }
#ifdef __AVXVNNI__
  static __m256i dot(__m256i codes, __m256i x, __m256i sums) {
    return _mm256_dpbusd_avx_epi32(sums, codes, x);
  }
#else
  static __m256i dot(__m256i codes, __m256i x, __m256i sums) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
  }
#endif
  static Sums dot_nibbles(Bytes codes, Bytes x, Sums sums) {
    return {dot(codes.lo, x.lo, sums.lo), dot(codes.hi, x.hi, sums.hi)};
  }
  // The sign of a code goes to x, so that the products of a pair, at most 2 * 128 * 127, fit 16 bits.
  static Sums dot_bytes(Bytes codes, Bytes x, Sums sums) {
    return {dot(_mm256_abs_epi8(codes.lo), _mm256_sign_epi8(x.lo, codes.lo), sums.lo),
            dot(_mm256_abs_epi8(codes.hi), _mm256_sign_epi8(x.hi, codes.hi), sums.hi)};
  }
  static __m256i join_halves(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  }
  static Sums pair_quarters(Sums a, Sums b) {
    return {join_halves(a.lo, a.hi), join_halves(b.lo, b.hi)};
  }
  // Adds neighbours twice: quarters 0 and 2 of an output come to lie in one half, 1 and 3 in the other.
  static Sums sum_quarters(Sums a, Sums b, Sums c, Sums d) {
    const __m256i ab = _mm256_hadd_epi32(_mm256_hadd_epi32(a.lo, a.hi), _mm256_hadd_epi32(b.lo, b.hi));
    const __m256i cd = _mm256_hadd_epi32(_mm256_hadd_epi32(c.lo, c.hi), _mm256_hadd_epi32(d.lo, d.hi));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return {_mm256_permutevar8x32_epi32(ab, order), _mm256_permutevar8x32_epi32(cd, order)};
  }
  static Vec256x2 quarters(const float* a, const float* b, const float* c, const float* d) {
    return {_mm256_loadu2_m128(b, a), _mm256_loadu2_m128(d, c)};
  }
  static Vec256x2 all_quarters(const float* from) {
    const __m256 both = _mm256_loadu2_m128(from, from);
    return {both, both};
  }
  static Vec256x2 each_quarter(float a, float b, float c, float d) {
    return {_mm256_set_m128(_mm_set1_ps(b), _mm_set1_ps(a)), _mm256_set_m128(_mm_set1_ps(d), _mm_set1_ps(c))};
  }

  struct NanWatch {
    static constexpr bool kNeeded = true;
    __m256i seen = _mm256_setzero_si256();
    static __m256i nan_codes(const std::byte* codes) {
      const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
      const __m256i bits = _mm256_or_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), sign);
      return _mm256_cmpeq_epi8(bits, _mm256_set1_epi8(static_cast<char>(0xff)));
    }
    void see(const std::byte* codes) {  // 64 codes
      seen = _mm256_or_si256(seen, _mm256_or_si256(nan_codes(codes), nan_codes(codes + 32)));
    }
    [[nodiscard]] bool found() const { return _mm256_testz_si256(seen, seen) == 0; }
  };

  void store(float* to) const {
    _mm256_storeu_ps(to, lo);
    _mm256_storeu_ps(to + 8, hi);
  }
  [[nodiscard]] float first() const {
    return _mm256_cvtss_f32(lo);
  }
  [[nodiscard]] float sum() const {
    const __m256 by8 = _mm256_add_ps(lo, hi);
    const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
    const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
    return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
  }
};

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
