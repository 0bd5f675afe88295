// Products in precision bf16 by AVX-512's instruction for them (AVX512-BF16, besides F, BW, VL, DQ and VBMI).
//
// VDPBF16PS takes pairs: sum = fma(low, low', fma(high, high', sum)) (Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 2; the same on Zen 4). So eight instructions are the chain of even columns in a step of 32
// columns: a pair's high half is column k, its low half column k + 2. The order of sums: rounded.inl.h.
#include "kernels/cpu/avx512.inl.h"
#include "kernels/cpu/e4m3_table.inl.h"
#include "kernels/cpu/rounded.inl.h"

namespace dspack::kernels {
namespace {

/// Pairs of columns: for every four columns the pair of even ones, then the pair of odd ones.
struct PairTerms {
  using V = Vec512;
  using Value = uint32_t;
  static constexpr uint32_t kValues = kStep / 2;
  static constexpr uint32_t kTile = 8;

  static void round(const float* x, uint32_t n, Value* to) {
    const auto first_lanes = [](uint32_t count) {
      return static_cast<__mmask16>(count >= kLanes ? 0xffffU : (1U << count) - 1U);
    };
    const __m512 low = _mm512_maskz_loadu_ps(first_lanes(n), x);
    const __m512 high = n <= kLanes ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(first_lanes(n - kLanes), x + kLanes);
    // Reorders columns 0 1 2 3 as 2 0 3 1.
    const __m512i places = _mm512_broadcast_i32x4(_mm_set_epi8(11, 10, 15, 14, 9, 8, 13, 12, 3, 2, 7, 6, 1, 0, 5, 4));
    const auto columns = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_storeu_si512(to, _mm512_shuffle_epi8(columns, places));
  }

  static __m512bh pairs(__m512i values) { return reinterpret_cast<__m512bh>(values); }

  template <uint32_t T>
  static void add_step(const Value (*weights)[kLanes], const Value* const (&x)[T], V (&even)[T], V (&odd)[T]) {
#pragma GCC unroll 8
    for (uint32_t k = 0; k < kValues; k += 2) {
      const __m512bh first = pairs(_mm512_load_si512(weights[k]));
      const __m512bh second = pairs(_mm512_load_si512(weights[k + 1]));
      for (uint32_t t = 0; t < T; ++t) {
        even[t].v = _mm512_dpbf16_ps(even[t].v, first, pairs(_mm512_set1_epi32(static_cast<int>(x[t][k]))));
        odd[t].v = _mm512_dpbf16_ps(odd[t].v, second, pairs(_mm512_set1_epi32(static_cast<int>(x[t][k + 1]))));
      }
    }
  }
};

/// Transposes 16 outputs in units of four bytes: line i holds bytes 4 i .. of every output. `n` bytes of each row
/// exist.
void turn_lines(const std::byte* const (&rows)[kLanes], uint64_t offset, uint32_t n, Vec512 (&lines)[kLanes]) {
  const __mmask64 there = n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
#pragma GCC unroll 16
  for (uint32_t o = 0; o < kLanes; ++o)
    lines[o].v = _mm512_castsi512_ps(_mm512_maskz_loadu_epi8(there, rows[o] + offset));
  Vec512::transpose(lines);
}

constinit const E4m3Table kE4m3(0);

struct TurnE4m3 {
  using Terms = PairTerms;
  static constexpr uint32_t kColumns = 64;
  static constexpr uint64_t bytes(uint32_t columns) { return columns; }
  static void turn(const std::byte* const (&rows)[kLanes], uint64_t offset, uint32_t n, uint32_t (*to)[kLanes]) {
    Vec512 lines[kLanes];
    turn_lines(rows, offset, n, lines);
    const __m512i low_0 = _mm512_load_si512(kE4m3.low);
    const __m512i low_1 = _mm512_load_si512(kE4m3.low + 64);
    const __m512i high_0 = _mm512_load_si512(kE4m3.high);
    const __m512i high_1 = _mm512_load_si512(kE4m3.high + 64);
    const __m512i evens = _mm512_set1_epi32(0x00ff00ff);
#pragma GCC unroll 16
    for (uint32_t i = 0; i < kLanes; ++i) {
      // Rotates columns to 2 3 0 1, so that column 2 is in the low half and column 0 in the high half.
      const __m512i codes = _mm512_rol_epi32(_mm512_castps_si512(lines[i].v), 16);
      const __m512i low = _mm512_permutex2var_epi8(low_0, codes, low_1);
      const __m512i magnitude = _mm512_permutex2var_epi8(high_0, codes, high_1);
      const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-128), 0xf8);  // a | (b & c)
      // c ? a : b, bit by bit.
      _mm512_store_si512(to[2 * i], _mm512_ternarylogic_epi32(low, _mm512_slli_epi32(high, 8), evens, 0xe4));
      _mm512_store_si512(to[2 * i + 1], _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 8), high, evens, 0xe4));
    }
  }
};

struct TurnBf16 {
  using Terms = PairTerms;
  static constexpr uint32_t kColumns = 32;
  static constexpr uint64_t bytes(uint32_t columns) { return uint64_t{2} * columns; }
  static void turn(const std::byte* const (&rows)[kLanes], uint64_t offset, uint32_t n, uint32_t (*to)[kLanes]) {
    Vec512 lines[kLanes];
    turn_lines(rows, offset, 2 * n, lines);
    constexpr __mmask32 kHighHalves = 0xaaaaaaaa;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kLanes; i += 2) {
      const __m512i first = _mm512_castps_si512(lines[i].v);  // columns 0 and 1
      const __m512i second = _mm512_castps_si512(lines[i + 1].v);
      _mm512_store_si512(to[i], _mm512_mask_blend_epi16(kHighHalves, second, _mm512_slli_epi32(first, 16)));
      _mm512_store_si512(to[i + 1], _mm512_mask_blend_epi16(kHighHalves, _mm512_srli_epi32(second, 16), first));
    }
  }
};

// Peak arithmetic of the instruction: independent sums with constant operands.
uint64_t dot_rounds(uint64_t rounds) {
  constexpr uint32_t kChains = 2 * PairTerms::kTile;
  __m512 sums[kChains];
  for (__m512& sum : sums)
    sum = _mm512_setzero_ps();
  const __m512bh factors = PairTerms::pairs(_mm512_set1_epi32(0x3f803f80));
  for (uint64_t round = 0; round < rounds; ++round) {
    for (__m512& sum : sums)
      sum = _mm512_dpbf16_ps(sum, factors, factors);
  }
  // Stores to a volatile, so that the compiler cannot remove the computation.
  for (const __m512& sum : sums) {
    volatile float seen = _mm512_cvtss_f32(sum);
    (void)seen;
  }
  return rounds * kChains * kLanes * 2;
}

}  // namespace

constinit const RoundedOps kAvx512Bf16Rounded = make_rounded<TurnE4m3, TurnBf16>(dot_rounds);

}  // namespace dspack::kernels
