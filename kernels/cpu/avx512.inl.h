// 16 lanes in one register of AVX-512 (F, BW, VL, DQ). For the instruction set files only (see table.inl.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

struct Vec512 {
  static constexpr uint32_t kTileOutputs = 4;
  static constexpr uint32_t kTileRows = 4;  // 16 accumulators, 4 + 1 operands, of 32 registers
  static constexpr uint32_t kTileColumns = 4;
  static constexpr bool kHasSums = true;
  static constexpr uint32_t kPanelVectors = 2;
  static constexpr uint32_t kPanelTileRows = 6;  // 24 sums, 2 + 1 operands
  static constexpr bool kPairsNibbles = true;

  __m512 v;

  static Vec512 zero() { return {_mm512_setzero_ps()}; }
  static Vec512 set(float value) { return {_mm512_set1_ps(value)}; }
  static Vec512 load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vec512 load_f32(const std::byte* from) { return {_mm512_loadu_ps(from)}; }
  static Vec512 load_bf16(const std::byte* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static Vec512 load_f16(const std::byte* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static Vec512 load_i8(const std::byte* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
  }
  // Each lane shifts its nibble down; the permutation uses only the low four bits of an index.
  static Vec512 nibbles_of(__m512i bytes, __m512i shifts, const int8_t (&values)[16]) {
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(values));
    return {_mm512_permutexvar_ps(_mm512_srlv_epi32(bytes, shifts), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(table)))};
  }
  static Vec512 load_nibbles(const std::byte* from, const int8_t (&values)[16]) {
    int32_t low = 0;
    int32_t high = 0;
    __builtin_memcpy(&low, from, sizeof low);
    __builtin_memcpy(&high, from + sizeof low, sizeof high);
    const __m512i bytes = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high);
    return nibbles_of(bytes, _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0), values);
  }
  // Each pair of lanes holds the same eight bytes, so even lanes take codes 0 to 7, odd ones 8 to 15.
  static Vec512 load_nibbles_paired(const std::byte* from, const int8_t (&values)[16]) {
    int64_t bytes = 0;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return nibbles_of(_mm512_set1_epi64(bytes),
                      _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0), values);
  }
  static Vec512 pair_lanes(Vec512 a) {
    return {_mm512_permutexvar_ps(_mm512_set_epi32(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0), a.v)};
  }
  static Vec512 part_lanes(Vec512 a) {
    return {_mm512_permutexvar_ps(_mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0), a.v)};
  }
  static void nibble_columns(Vec512 codes, const int8_t (&values)[16], Vec512 (&columns)[8]) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; ++i)
      columns[i] = nibbles_of(_mm512_castps_si512(codes.v), _mm512_set1_epi32(static_cast<int>(4 * i)), values);
  }
  // s eeee mmm becomes the half s 0eeee mmm0000000, which is value / 256 for normal and subnormal codes alike. The sign
  // comes from sign extension; the mask clears its second copy. NaN codes become 480 / 256.
  static Vec512 load_e4m3_unmended(const std::byte* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return {_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff))))};
  }
  static Vec512 load_e4m3_over_256(const std::byte* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __mmask16 nan = _mm_testn_epi8_mask(_mm_add_epi8(codes, _mm_set1_epi8(1)), _mm_set1_epi8(0x7f));
    return {_mm512_mask_mov_ps(load_e4m3_unmended(from).v, nan, _mm512_set1_ps(__builtin_nanf("")))};
  }

  static Vec512 fma(Vec512 a, Vec512 b, Vec512 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  static Vec512 add(Vec512 a, Vec512 b) {
    return {_mm512_add_ps(a.v, b.v)};
  }
  static Vec512 sub(Vec512 a, Vec512 b) {
    return {_mm512_sub_ps(a.v, b.v)};
  }
  static Vec512 mul(Vec512 a, Vec512 b) {
    return {_mm512_mul_ps(a.v, b.v)};
  }
  static Vec512 div(Vec512 a, Vec512 b) {
    return {_mm512_div_ps(a.v, b.v)};
  }
  static Vec512 min(Vec512 a, Vec512 b) {
    return {_mm512_min_ps(a.v, b.v)};
  }
  static Vec512 max(Vec512 a, Vec512 b) {
    return {_mm512_max_ps(a.v, b.v)};
  }
  static Vec512 power_of_two(Vec512 n) {  // the low bits of n + 127 + 1.5 * 2^23 hold n + 127
    const __m512 biased = _mm512_add_ps(n.v, _mm512_set1_ps(12582912.0F + 127.0F));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(biased), 23))};
  }

  // Transposes each four rows within 128-bit quarters, then exchanges the quarters.
  static void transpose(Vec512 (&m)[16]) {
    __m512 a[16], b[16];
    for (uint32_t i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(m[i].v, m[i + 1].v);
      a[i + 1] = _mm512_unpackhi_ps(m[i].v, m[i + 1].v);
    }
    for (uint32_t i = 0; i < 16; i += 4) {
      for (uint32_t j = 0; j < 2; ++j) {
        const __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + j + 2]);
        b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    }
    for (uint32_t j = 0; j < 4; ++j) {
      const __m512 first = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88),
                   second = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);
      const __m512 third = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xdd),
                   fourth = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xdd);
      m[j].v = _mm512_shuffle_f32x4(first, second, 0x88);
      m[j + 8].v = _mm512_shuffle_f32x4(first, second, 0xdd);
      m[j + 4].v = _mm512_shuffle_f32x4(third, fourth, 0x88);
      m[j + 12].v = _mm512_shuffle_f32x4(third, fourth, 0xdd);
    }
  }

  // Integers: 64 bytes, or 16 sums (int8.inl.h).
  static constexpr uint32_t kInt8Vectors = 2;
  static constexpr uint32_t kInt8Rows = 4;  // 8 sums and 8 totals, 2 + 1 operands
  static constexpr uint32_t kInt8StreamRows = 4;
  using Bytes = __m512i;
  using Sums = __m512i;
  static Bytes load_bytes(const void* from) {
    return _mm512_loadu_si512(from);
  }
  static Sums set_sums(int32_t value) {
    return _mm512_set1_epi32(value);
  }
  static Sums bits_of(Vec512 v) {
    return _mm512_castps_si512(v.v);
  }
  static Vec512 of_bits(Bytes bytes) {
    return {_mm512_castsi512_ps(bytes)};
  }
  static Vec512 floats_of(Sums sums) {
    return {_mm512_cvtepi32_ps(sums)};
  }
  static Sums add_sums(Sums a, Sums b) {
    return _mm512_add_epi32(a, b);
  }
  static Sums times_short(Sums a, Sums b) {
    return _mm512_madd_epi16(a, b);
  }
  static Bytes low_nibbles(Bytes bytes) {
    return _mm512_and_si512(bytes, _mm512_set1_epi8(0xf));
  }
  static Bytes high_nibbles(Bytes bytes) {
    return low_nibbles(_mm512_srli_epi16(bytes, 4));
  }
#ifdef __AVX512VNNI__
  static constexpr int32_t kByteZero = 128;
  static Bytes byte_codes(Bytes bytes) {  // the instruction's first factor has no sign
    return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
  }
  static Sums dot_nibbles(Bytes codes, Bytes x, Sums sums) {
    return _mm512_dpbusd_epi32(sums, codes, x);
  }
  static Sums dot_bytes(Bytes codes, Bytes x, Sums sums) {
    return _mm512_dpbusd_epi32(sums, codes, x);
  }
#else
  static constexpr int32_t kByteZero = 0;
  static Bytes byte_codes(Bytes bytes) {
    return bytes;
  }
  static Sums dot_nibbles(Bytes codes, Bytes x, Sums sums) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, x), _mm512_set1_epi16(1)));
  }
  static __m512i even_bytes(Bytes bytes) {
    return _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
  }
  static __m512i odd_bytes(Bytes bytes) {
    return _mm512_srai_epi16(bytes, 8);
  }
  static Sums dot_bytes(Bytes codes, Bytes x, Sums sums) {
    const __m512i even = _mm512_madd_epi16(even_bytes(codes), even_bytes(x));
    const __m512i odd = _mm512_madd_epi16(odd_bytes(codes), odd_bytes(x));
    return _mm512_add_epi32(sums, _mm512_add_epi32(even, odd));
  }
#endif
  static Sums pair_quarters(Sums a, Sums b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
  static Sums add_unpacked(Sums a, Sums b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }
  static Sums sum_quarters(Sums a, Sums b, Sums c, Sums d) {
    const __m512i ab = add_unpacked(a, b), cd = add_unpacked(c, d);
    const __m512i by_quarter = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                    by_quarter);
  }
  static Vec512 quarters(const float* a, const float* b, const float* c, const float* d) {
    const __m512 ab = _mm512_insertf32x4(_mm512_castps128_ps512(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
    return {_mm512_insertf32x4(_mm512_insertf32x4(ab, _mm_loadu_ps(c), 2), _mm_loadu_ps(d), 3)};
  }
  static Vec512 all_quarters(const float* from) {
    return {_mm512_broadcast_f32x4(_mm_loadu_ps(from))};
  }
  static Vec512 each_quarter(float a, float b, float c, float d) {
    return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                  _mm512_castps128_ps512(_mm_setr_ps(a, b, c, d)))};
  }

  struct NanWatch {
    static constexpr bool kNeeded = true;
    __mmask64 seen = 0;
    void see(const std::byte* codes) {  // 64 codes: magnitude 0x7f plus one has no bit of 0x7f
      const __m512i next = _mm512_add_epi8(_mm512_loadu_si512(codes), _mm512_set1_epi8(1));
      seen |= _mm512_testn_epi8_mask(next, _mm512_set1_epi8(0x7f));
    }
    [[nodiscard]] bool found() const { return seen != 0; }
  };

  void store(float* to) const {
    _mm512_storeu_ps(to, v);
  }
  [[nodiscard]] float first() const {
    return _mm512_cvtss_f32(v);
  }
  [[nodiscard]] float sum() const {
    const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
    const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
    return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
  }
  /// Lane i: the sum of vectors[i], by the additions of sum(), each for as many vectors as fill a register.
  static Vec512 sums(const Vec512 (&vectors)[16]) {
    __m512 by4[4];
    for (int i = 0; i < 4; ++i) {
      const __m512 first = add_quarters<0x44, 0xee>(vectors[i].v, vectors[i + 4].v);
      const __m512 last = add_quarters<0x44, 0xee>(vectors[i + 8].v, vectors[i + 12].v);
      by4[i] = add_quarters<0x88, 0xdd>(first, last);
    }
    return {add_lanes<0x88, 0xdd>(add_lanes<0x44, 0xee>(by4[0], by4[1]), add_lanes<0x44, 0xee>(by4[2], by4[3]))};
  }
  template <int kSome, int kOthers>
  static __m512 add_quarters(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, kSome), _mm512_shuffle_f32x4(a, b, kOthers));
  }
  /// Within each quarter.
  template <int kSome, int kOthers>
  static __m512 add_lanes(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, kSome), _mm512_shuffle_ps(a, b, kOthers));
  }
};

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
