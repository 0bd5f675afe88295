// The two inner loops: a tile of dot products, and a tile of column sums.
//
// For the instruction set files only (see table.inl.h). V is the file's vector of 16 FP32 lanes; L loads one weight
// type as a V. In a tile every weight vector serves all rows of x, and every vector of x serves all outputs. Each sum
// has its own accumulator, so the shape of the tile does not change the result.
//
//        x[0] x[1] ..  (T)            i ->            Both add, per lane, in ascending order of the summed index.
//   w[0]  acc  acc                 w  [16][16][tail, zero-padded]
//   w[1]  acc  acc
//   (O)
//
// Nothing here may call an inline function of the standard library: the linker could keep the copy compiled for this
// instruction set and use it in the rest of the program.
#pragma once

#include "kernels/cpu/decode.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

inline uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/// Prefetches the line `ahead` bytes further; beyond the end of a matrix this has no effect. Locality as in
/// __builtin_prefetch: 3 is the L1 cache, 2 is L2.
template <int kLocality = 3>
inline void prefetch(const std::byte* from, size_t ahead) {
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(from) + ahead;  // arithmetic on a pointer may not leave its array
  __builtin_prefetch(reinterpret_cast<const void*>(address), 0, kLocality);  // NOLINT(performance-no-int-to-ptr)
}

/// Prefetches in memory that is read sequentially: nearby lines into L1, lines further ahead into L2, which has room
/// for more requests. One row of FP8 on two threads of Zen 4 (2026-11): 36 GB/s; with L1 alone, 1 to 8 KB ahead, 32;
/// with L2 alone 35.
inline void prefetch_run(const std::byte* from) {
  prefetch(from, 256);
  prefetch<2>(from, 2048);
}

inline const std::byte* bytes_of(const float* values) {
  return reinterpret_cast<const std::byte*>(values);
}

/// The first n < 16 values, padded with zeros. Reads nothing beyond them.
template <class V, class L>
V load_part(const std::byte* from, uint32_t n) {
  alignas(64) std::byte padded[bytes_for<L>(kLanes)] = {};
  __builtin_memcpy(padded, from, bytes_for<L>(n));
  return L::template load<V>(padded);
}

template <class V>
void store_part(V value, float* to, uint32_t n) {
  alignas(64) float all[kLanes];
  value.store(all);
  __builtin_memcpy(to, all, size_t{n} * sizeof(float));
}

/// For codings without zero points.
template <class V>
struct NoZeros {
  static V less(const V& code, uint32_t /*output*/) { return code; }
};
/// Zero points of the block that the outputs' codes are in.
template <class V, uint32_t O>
struct BlockZeros {
  V zero[O];
  V less(const V& code, uint32_t output) const { return V::sub(code, zero[output]); }
};

template <class V, class L, uint32_t O, uint32_t T, class Zeros = NoZeros<V>>
void tail_dots(const std::byte* const (&w)[O], const float* const (&x)[T], uint32_t i, uint32_t n, V (&acc)[O][T],
               const Zeros& zeros = {}) {
  V values[T];
  for (uint32_t t = 0; t < T; ++t)
    values[t] = load_part<V, LoadF32>(bytes_of(x[t] + i), n);
  for (uint32_t o = 0; o < O; ++o) {
    const V weight = zeros.less(load_part<V, L>(w[o] + bytes_for<L>(i), n), o);  // x is 0 past the end
    for (uint32_t t = 0; t < T; ++t)
      acc[o][t] = V::fma(weight, values[t], acc[o][t]);
  }
}

/// Adds the products of one vector of each operand, from value i on.
template <class V, class L, uint32_t O, uint32_t T, class Zeros = NoZeros<V>>
inline void add_vectors(const std::byte* const (&w)[O], const float* const (&x)[T], uint32_t i, V (&acc)[O][T],
                        const Zeros& zeros = {}) {
  V weight[O];
  for (uint32_t o = 0; o < O; ++o)
    weight[o] = zeros.less(L::template load<V>(w[o] + bytes_for<L>(i)), o);
  for (uint32_t t = 0; t < T; ++t) {
    const V value = V::load(x[t] + i);
    for (uint32_t o = 0; o < O; ++o)
      acc[o][t] = V::fma(weight[o], value, acc[o][t]);
  }
}

/// acc[o][t] += w[o][i] * x[t][i], i < n, term i in lane i % 16.
template <class V, class L, uint32_t O, uint32_t T>
inline void add_dots(const std::byte* const (&w)[O], const float* const (&x)[T], uint32_t n, V (&acc)[O][T]) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    add_vectors<V, L, O, T>(w, x, i, acc);
  if (i < n) tail_dots<V, L, O, T>(w, x, i, n - i, acc);
}

/// acc[j][t] += x[t][d] * w[d][16 j ..], d < n: one chain of additions per column. Rows of w are whole vectors that
/// share one zero point.
template <class V, class L, uint32_t J, uint32_t T, class Zeros = NoZeros<V>>
inline void add_columns(const std::byte* w, size_t row_bytes, const float* const (&x)[T], uint32_t n, V (&acc)[J][T],
                        const Zeros& zeros = {}) {
  for (uint32_t d = 0; d < n; ++d, w += row_bytes) {
    V weight[J];
    if constexpr (L::kHasLines && J == 4) {
      L::template load_line<V>(w, weight);
    } else {
      for (uint32_t j = 0; j < J; ++j)
        weight[j] = zeros.less(L::template load<V>(w + bytes_for<L>(size_t{j} * kLanes)), 0);
    }
    for (uint32_t t = 0; t < T; ++t) {
      const V value = V::set(x[t][d]);
      for (uint32_t j = 0; j < J; ++j)
        acc[j][t] = V::fma(weight[j], value, acc[j][t]);
    }
  }
}

/// Same for one vector of which only the first `columns` < 16 exist.
template <class V, class L, uint32_t T, class Zeros = NoZeros<V>>
inline void add_part_columns(const std::byte* w, size_t row_bytes, uint32_t columns, const float* const (&x)[T],
                             uint32_t n, V (&acc)[1][T], const Zeros& zeros = {}) {
  for (uint32_t d = 0; d < n; ++d, w += row_bytes) {
    const V weight = zeros.less(load_part<V, L>(w, columns), 0);
    for (uint32_t t = 0; t < T; ++t)
      acc[0][t] = V::fma(weight, V::set(x[t][d]), acc[0][t]);
  }
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
