// y = x W^T over a range of outputs. For the instruction set files only (see table.inl.h).
//
// Streams weights from memory through registers into the tile, once per four rows of x: for a decoded token, and drafts
// to verify. For many rows see panels.inl.h, which gives the same bits.
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/scales.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

template <class L>
const std::byte* weight_at(const MatrixView& matrix, uint32_t row, uint32_t column) {
  return matrix.planes[kCodes] + row * bytes_for<L>(matrix.in) + bytes_for<L>(column);
}

/// NaN detection per output of a `direct_tile`; none for types whose load is exact.
struct NoWatch {
  static constexpr bool kNeeded = false;
  [[nodiscard]] bool found() const { return false; }
};
template <class V, class L>
struct WatchOf {
  using Type = NoWatch;
};
// Detecting NaN codes 64 at a time costs a third of correcting each vector (0.8 times the total time from cache,
// measured 2026-11 on Zen 4). One NaN code makes the whole output NaN, whatever its factor is.
template <class V>
struct WatchOf<V, LoadE4m3> {
  using Type = typename V::NanWatch;
};

/// The outputs of a tile, one from each of O equal parts of a range, so that consecutive tiles read O long runs of
/// memory, which the hardware prefetcher follows best. One row of FP8 on two threads that read 33 GB/s (Sapphire
/// Rapids, 2026-11): 32 to 36 GB/s with rows of 1.5 to 16 KB; with O neighbouring rows per tile 23 GB/s for rows of 1.5
/// KB, 30 GB/s for 7 KB.
struct TileOutputs {
  uint32_t first = 0;
  uint32_t apart = 0;
  [[nodiscard]] uint32_t at(uint32_t o) const { return first + o * apart; }
};

/// add_dots for weights that stream from memory.
template <class V, class L, uint32_t O, uint32_t T, class Watch>
inline void stream_dots(const std::byte* const (&w)[O], const float* const (&x)[T], uint32_t n, V (&acc)[O][T],
                        Watch (&watch)[O]) {
  uint32_t i = 0;
  if constexpr (L::kHasLines) {
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      for (uint32_t o = 0; o < O; ++o) {
        prefetch_run(w[o] + i);
        V weight[4];
        L::template load_line<V>(w[o] + i, weight);
        for (uint32_t v = 0; v < 4; ++v) {
          for (uint32_t t = 0; t < T; ++t)
            acc[o][t] = V::fma(weight[v], V::load(x[t] + i + v * kLanes), acc[o][t]);
        }
      }
    }
  } else if constexpr (Watch::kNeeded) {
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      for (uint32_t o = 0; o < O; ++o) {
        prefetch_run(w[o] + i);
        watch[o].see(w[o] + i);
      }
      for (uint32_t v = 0; v < 4; ++v)
        add_vectors<V, LoadE4m3Unmended, O, T>(w, x, i + v * kLanes, acc);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    for (uint32_t o = 0; o < O; ++o)
      prefetch_run(w[o] + bytes_for<L>(i));
    add_vectors<V, L, O, T>(w, x, i, acc);
  }
  if (i < n) tail_dots<V, L, O, T>(w, x, i, n - i, acc);
}

/// Computes T rows of x from `row` on. Scales are plain FP32 (check_weight).
template <class V, class L, uint32_t O, uint32_t T>
void direct_tile(const LinearTask& task, const TileOutputs& outputs, uint32_t row) {
  const MatrixView& matrix = task.matrix;
  const float* scales[O];
  for (uint32_t o = 0; o < O; ++o)
    scales[o] = reinterpret_cast<const float*>(scales_of_row(matrix, outputs.at(o), 0));
  typename WatchOf<V, L>::Type watch[O];
  V total[O][T] = {};
  for (uint32_t begin = 0, block = 0; begin < matrix.in; begin += matrix.block_in, ++block) {
    const std::byte* w[O];
    const float* x[T];
    for (uint32_t o = 0; o < O; ++o)
      w[o] = weight_at<L>(matrix, outputs.at(o), begin);
    for (uint32_t t = 0; t < T; ++t)
      x[t] = task.x + (row + t) * task.x_stride + begin;
    V acc[O][T] = {};
    stream_dots<V, L, O, T>(w, x, smaller(matrix.block_in, matrix.in - begin), acc, watch);
    for (uint32_t o = 0; o < O; ++o) {
      const V scale = V::set(scales[o][block] * L::kUnit);
      for (uint32_t t = 0; t < T; ++t)
        total[o][t] = V::fma(acc[o][t], scale, total[o][t]);
    }
  }
  float* y = task.y + row * task.y_stride + (outputs.first - task.outputs.begin);
  for (uint32_t o = 0; o < O; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      y[t * task.y_stride + size_t{o} * outputs.apart] = watch[o].found() ? __builtin_nanf("") : total[o][t].sum();
  }
}

/// add_vectors in the lane order that is cheaper for four-bit codes (V::pair_lanes).
template <class V, class L, uint32_t O, uint32_t T, class Zeros>
inline void add_paired(const std::byte* const (&w)[O], const float* const (&x)[T], uint32_t i, V (&acc)[O][T],
                       const Zeros& zeros) {
  V weight[O];
  for (uint32_t o = 0; o < O; ++o)
    weight[o] = zeros.less(L::template load_paired<V>(w[o] + bytes_for<L>(i)), o);
  for (uint32_t t = 0; t < T; ++t) {
    const V value = V::pair_lanes(V::load(x[t] + i));
    for (uint32_t o = 0; o < O; ++o)
      acc[o][t] = V::fma(weight[o], value, acc[o][t]);
  }
}

/// tail_dots on a copy of the sums: `acc` would leave its registers if its address were taken.
template <class V, class L, uint32_t O, uint32_t T, class Zeros>
void add_rest(const std::byte* const (&w)[O], const float* const (&x)[T], uint32_t i, uint32_t n, V (&acc)[O][T],
              const Zeros& zeros) {
  V rest[O][T];
  for (uint32_t o = 0; o < O; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      rest[o][t] = acc[o][t];
  }
  tail_dots<V, L, O, T>(w, x, i, n, rest, zeros);
  for (uint32_t o = 0; o < O; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      acc[o][t] = rest[o][t];
  }
}

/// The rows of a tile of T: those from `count` on repeat the last and are not stored.
struct TileRows {
  uint32_t first = 0;
  uint32_t count = 0;
  [[nodiscard]] uint32_t at(uint32_t t) const { return first + smaller(t, count - 1); }
};

/// direct_tile for packed codes in small groups, which keep both sums of an output (block and total) busy. N: vectors
/// per group, all groups whole; 0: groups of any size. A compile-time N keeps the sums in registers (one row, groups of
/// 32, per thread: 18.0 G weights/s instead of 14.8, including decoding scales by type, measured 2026-11 on Sapphire
/// Rapids).
template <class V, class L, uint32_t O, uint32_t T, uint32_t N>
void packed_tile(const LinearTask& task, const TileOutputs& outputs, const TileRows& rows) {
  const MatrixView& matrix = task.matrix;
  const std::byte* w[O];
  const float* x[T];
  for (uint32_t o = 0; o < O; ++o)
    w[o] = weight_at<L>(matrix, outputs.at(o), 0);
  for (uint32_t t = 0; t < T; ++t)
    x[t] = task.x + rows.at(t) * task.x_stride;
  constexpr uint32_t kLine = 64 * 8 / L::kBits;  // columns
  constexpr bool kIsPaired = V::kPairsNibbles && N != 0;
  const uint32_t block_in = N != 0 ? N * kLanes : matrix.block_in;
  V total[O][T] = {};
  for (uint32_t first = 0; first < matrix.scale_stride; first += kScaleWindow) {
    const uint32_t blocks = smaller(kScaleWindow, matrix.scale_stride - first);
    alignas(64) float scales[O][kScaleWindow];
    for (uint32_t o = 0; o < O; ++o)
      decode_scales<V>(matrix, outputs.at(o), first, blocks, L::kUnit, scales[o]);
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint32_t begin = (first + block) * block_in;
      const auto zeros = zeros_of<V, L, O>(matrix, outputs.first, outputs.apart, first + block);
      V acc[O][T] = {};
      const auto add_vector = [&](uint32_t i) {
        if (i % kLine == 0) {
          for (uint32_t o = 0; o < O; ++o)
            prefetch_run(w[o] + bytes_for<L>(i));
        }
        if constexpr (kIsPaired) {
          add_paired<V, L, O, T>(w, x, i, acc, zeros);
        } else {
          add_vectors<V, L, O, T>(w, x, i, acc, zeros);
        }
      };
      if constexpr (N != 0) {
#pragma GCC unroll 8
        for (uint32_t v = 0; v < N; ++v)
          add_vector(begin + v * kLanes);
      } else {
        const uint32_t end = begin + smaller(block_in, matrix.in - begin);
        uint32_t i = begin;
        for (; i + kLanes <= end; i += kLanes)
          add_vector(i);
        if (i < end) add_rest<V, L, O, T>(w, x, i, end - i, acc, zeros);
      }
      for (uint32_t o = 0; o < O; ++o) {
        const V scale = V::set(scales[o][block]);
        for (uint32_t t = 0; t < T; ++t)
          total[o][t] = V::fma(acc[o][t], scale, total[o][t]);
      }
    }
  }
  float* y = task.y + rows.first * task.y_stride + (outputs.first - task.outputs.begin);
  for (uint32_t o = 0; o < O; ++o) {
    for (uint32_t t = 0; t < rows.count; ++t) {
      if constexpr (kIsPaired) total[o][t] = V::part_lanes(total[o][t]);
      y[t * task.y_stride + size_t{o} * outputs.apart] = total[o][t].sum();
    }
  }
}

template <class V, class L, uint32_t O, uint32_t T, uint32_t N>
void packed_outputs(const LinearTask& task, const TileRows& rows) {
  const RowRange range = task.outputs;
  const uint32_t apart = (range.end - range.begin) / O;
  for (uint32_t output = range.begin; output < range.begin + apart; ++output)
    packed_tile<V, L, O, T, N>(task, {output, apart}, rows);
  for (uint32_t output = range.begin + O * apart; output < range.end; ++output)
    packed_tile<V, L, 1, T, N>(task, {output, 1}, rows);
}

template <class V, class L, uint32_t N>
void packed_rows(const LinearTask& task) {
  constexpr uint32_t kTile = V::kTileRows;
  for (uint32_t row = 0; row < task.rows; row += kTile) {
    const TileRows rows{row, smaller(kTile, task.rows - row)};
    if (2 * rows.count > kTile) {
      packed_outputs<V, L, V::kTileOutputs / 2, kTile, N>(task, rows);
      continue;
    }
    // At most half a tile costs less row by row, with more outputs at once.
    for (uint32_t t = 0; t < rows.count; ++t)
      packed_outputs<V, L, V::kTileOutputs, 1, N>(task, {row + t, 1});
  }
}

template <class V, class L>
void packed_rows(const LinearTask& task) {
  const MatrixView& matrix = task.matrix;
  if (matrix.in % matrix.block_in != 0) return packed_rows<V, L, 0>(task);
  switch (matrix.block_in) {
    case kLanes: return packed_rows<V, L, 1>(task);
    case 2 * kLanes: return packed_rows<V, L, 2>(task);
    case 8 * kLanes: return packed_rows<V, L, 8>(task);
    default: return packed_rows<V, L, 0>(task);
  }
}

template <class V, class L, uint32_t O, uint32_t T>
void direct_outputs(const LinearTask& task, uint32_t row) {
  const RowRange range = task.outputs;
  const uint32_t apart = (range.end - range.begin) / O;
  for (uint32_t output = range.begin; output < range.begin + apart; ++output)
    direct_tile<V, L, O, T>(task, {output, apart}, row);
  for (uint32_t output = range.begin + O * apart; output < range.end; ++output)
    direct_tile<V, L, 1, T>(task, {output, 1}, row);
}

template <class V, class L>
void linear_rows(const LinearTask& task) {
  if constexpr (L::kBits < 8) return packed_rows<V, L>(task);
  uint32_t row = 0;
  if constexpr (V::kTileRows >= 4) {
    for (; row + 4 <= task.rows; row += 4)
      direct_outputs<V, L, V::kTileOutputs, 4>(task, row);
    if (row + 3 == task.rows) {
      direct_outputs<V, L, V::kTileOutputs, 3>(task, row);
      return;
    }
  }
  for (; row + 2 <= task.rows; row += 2)
    direct_outputs<V, L, V::kTileOutputs, 2>(task, row);
  if (row < task.rows) direct_outputs<V, L, 4, 1>(task, row);
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
