// Exact products of E4M3 by tables in registers (AVX-512's VBMI, besides F, BW, VL and DQ): 64 codes are looked up at
// once.
#include "kernels/cpu/avx512.inl.h"
#include "kernels/cpu/columns.inl.h"
#include "kernels/cpu/e4m3_table.inl.h"
#include "kernels/cpu/linear.inl.h"
#include "kernels/cpu/panels.inl.h"

namespace dspack::kernels {
namespace {

// Values / 256, so that sums have the same terms as on the other instruction sets.
constinit const E4m3Table kOver256(-8);

/// BF16 values of 64 codes, split into low and high bytes.
struct Halves {
  __m512i low;
  __m512i high;
};

Halves look_up(__m512i codes) {
  const __m512i low =
      _mm512_permutex2var_epi8(_mm512_load_si512(kOver256.low), codes, _mm512_load_si512(kOver256.low + 64));
  const __m512i magnitude =
      _mm512_permutex2var_epi8(_mm512_load_si512(kOver256.high), codes, _mm512_load_si512(kOver256.high + 64));
  return {low, _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-128), 0xf8)};  // a | (b & c)
}

/// Widens pairs of BF16 to FP32: the first of each pair, and the second.
void widen(__m512i pairs, Vec512& first, Vec512& second) {
  first.v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  second.v = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}

struct LoadE4m3Table : LoadE4m3 {
  static constexpr bool kHasLines = true;
  static constexpr bool kHasColumns = true;

  // Orders the bytes so that unpacking yields pairs of columns i and i + 16, in lane i.
  template <class V>
  static void load_line(const std::byte* from, V (&values)[4]) {
    alignas(64) static constexpr uint8_t kPlaces[64] = {
        0,  16, 1,  17, 2,  18, 3,  19, 32, 48, 33, 49, 34, 50, 35, 51,  //
        4,  20, 5,  21, 6,  22, 7,  23, 36, 52, 37, 53, 38, 54, 39, 55,  //
        8,  24, 9,  25, 10, 26, 11, 27, 40, 56, 41, 57, 42, 58, 43, 59,  //
        12, 28, 13, 29, 14, 30, 15, 31, 44, 60, 45, 61, 46, 62, 47, 63};
    const Halves halves = look_up(_mm512_permutexvar_epi8(_mm512_load_si512(kPlaces), _mm512_loadu_si512(from)));
    widen(_mm512_unpacklo_epi8(halves.low, halves.high), values[0], values[1]);
    widen(_mm512_unpackhi_epi8(halves.low, halves.high), values[2], values[3]);
  }

  template <class V>
  static void columns(const V& codes, V (&values)[4]) {
    const Halves halves = look_up(_mm512_castps_si512(codes.v));
    const __m512i evens = _mm512_set1_epi32(0x00ff00ff);
    // c ? a : b, bit by bit: bytes 0 and 2 of each lane, then 1 and 3.
    const __m512i even = _mm512_ternarylogic_epi32(halves.low, _mm512_slli_epi32(halves.high, 8), evens, 0xe4);
    const __m512i odd = _mm512_ternarylogic_epi32(_mm512_srli_epi32(halves.low, 8), halves.high, evens, 0xe4);
    widen(even, values[0], values[2]);
    widen(odd, values[1], values[3]);
  }
};

}  // namespace

constinit const E4m3Ops kVbmiE4m3 = {.linear = linear_rows<Vec512, LoadE4m3Table>,
                                     .panels = panel_rows<Vec512, LoadE4m3Table>,
                                     .columns = columns_range<Vec512, LoadE4m3Table>};

}  // namespace dspack::kernels
