#include "format/sha256_lanes.h"

#include <array>

#include "format/base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

namespace dspack::format {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4 section 4.2.2).
alignas(16) constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr size_t kGroups = 16;     // groups of four rounds
constexpr size_t kScheduled = 12;  // groups after which no further message words are needed
constexpr size_t kBlockBytes = 64;

__m128i load(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

void store(void* to, __m128i value) {
  _mm_storeu_si128(static_cast<__m128i*>(to), value);
}

// The instructions need the state as (a b e f) and (c d g h).
struct Words {
  __m128i abef;
  __m128i cdgh;
};

[[gnu::target("ssse3,sse4.1")]] Words load_state(const uint32_t* state) {
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(load(state + 4), 0x1B);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xF0)};
}

[[gnu::target("ssse3,sse4.1")]] void store_state(uint32_t* state, const Words& words) {
  const __m128i feba = _mm_shuffle_epi32(words.abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(words.cdgh, 0xB1);
  store(state, _mm_blend_epi16(feba, dchg, 0xF0));
  store(state + 4, _mm_alignr_epi8(dchg, feba, 8));
}

template <size_t kLanes>
[[gnu::target("sha,ssse3,sse4.1")]] void blocks_of(std::span<const Sha256Lane> lanes, size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  Words words[kLanes];
  for (size_t n = 0; n < kLanes; ++n)
    words[n] = load_state(lanes[n].state);
  for (size_t block = 0; block < blocks; ++block) {
    Words before[kLanes];
    __m128i message[kLanes][4];  // the sixteen words for the next rounds
    for (size_t n = 0; n < kLanes; ++n) {
      before[n] = words[n];
      for (size_t i = 0; i < 4; ++i)
        message[n][i] = _mm_shuffle_epi8(load(lanes[n].bytes + block * kBlockBytes + 16 * i), big_endian);
    }
#pragma GCC unroll 16
    for (size_t group = 0; group < kGroups; ++group) {
      const __m128i constants = load(kRoundConstants.data() + 4 * group);
#pragma GCC unroll 3
      for (size_t n = 0; n < kLanes; ++n) {
        __m128i& oldest = message[n][group & 3];
        const __m128i newest = message[n][(group + 3) & 3];
        const __m128i rounds = _mm_add_epi32(oldest, constants);
        words[n].cdgh = _mm_sha256rnds2_epu32(words[n].cdgh, words[n].abef, rounds);
        if (group < kScheduled) {
          const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(oldest, message[n][(group + 1) & 3]),
                                            _mm_alignr_epi8(newest, message[n][(group + 2) & 3], 4));
          oldest = _mm_sha256msg2_epu32(sum, newest);
        }
        words[n].abef = _mm_sha256rnds2_epu32(words[n].abef, words[n].cdgh, _mm_shuffle_epi32(rounds, 0x0E));
      }
    }
    for (size_t n = 0; n < kLanes; ++n) {
      words[n].abef = _mm_add_epi32(words[n].abef, before[n].abef);
      words[n].cdgh = _mm_add_epi32(words[n].cdgh, before[n].cdgh);
    }
  }
  for (size_t n = 0; n < kLanes; ++n)
    store_state(lanes[n].state, words[n]);
}

bool cpu_has_sha() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool has_sse = (ecx & bit_SSSE3) != 0 && (ecx & bit_SSE4_1) != 0;
  return has_sse && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & bit_SHA) != 0;
}

}  // namespace

bool has_sha256_lanes() {
  static const bool has = cpu_has_sha();
  return has;
}

void sha256_blocks(std::span<const Sha256Lane> lanes, size_t blocks) {
  DSPACK_CHECK(has_sha256_lanes() && !lanes.empty() && lanes.size() <= kSha256Lanes, "asked for too much");
  if (lanes.size() == 1) return blocks_of<1>(lanes, blocks);
  if (lanes.size() == 2) return blocks_of<2>(lanes, blocks);
  blocks_of<3>(lanes, blocks);
}

}  // namespace dspack::format

#else  // elsewhere OpenSSL computes one digest after the other

namespace dspack::format {

bool has_sha256_lanes() {
  return false;
}

void sha256_blocks(std::span<const Sha256Lane> /*lanes*/, size_t /*blocks*/) {
  DSPACK_CHECK(false, "no SHA instructions here");
}

}  // namespace dspack::format

#endif
