// y = x W^T over a range of outputs. For the instruction set files only (see table.inl.h).
//
// Weights go from memory through registers into the tile, once for each four rows of x: for a decoded token, and drafts
// to verify. Many rows are the affair of panels.inl.h, with the same bits.
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

/// What a tile of `direct_tile` keeps per output besides its sums: nothing, for types whose load is exact as it stands.
struct NoWatch {
  static constexpr bool kNeeded = false;
  [[nodiscard]] bool found() const { return false; }
};
template <class V, class L>
struct WatchOf {
  using Type = NoWatch;
};
// Looking for NaN in 64 codes at once costs a third of mending each vector (0.8 times the time in the cache, measured
// 2026-11 on Zen 4). One such code makes the whole output NaN, whatever it is multiplied with.
template <class V>
struct WatchOf<V, LoadE4m3> {
  using Type = typename V::NanWatch;
};

/// add_dots for weights that come from memory. The processor's own prefetching stops at each page and with each row;
/// asking one group of rows ahead was worth 25 to 45 % (one thread, measured 2026-11 on a Zen 4 with other work
/// beside).
template <class V, class L, uint32_t O, uint32_t T, class Watch>
inline void stream_dots(const std::byte* const (&w)[O], const float* const (&x)[T], uint32_t n, size_t ahead,
                        V (&acc)[O][T], Watch (&watch)[O]) {
  uint32_t i = 0;
  if constexpr (Watch::kNeeded) {
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      for (uint32_t o = 0; o < O; ++o) {
        prefetch(w[o] + i, ahead);
        watch[o].see(w[o] + i);
      }
      for (uint32_t v = 0; v < 4; ++v)
        add_vectors<V, LoadE4m3Unmended, O, T>(w, x, i + v * kLanes, acc);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    for (uint32_t o = 0; o < O; ++o)
      prefetch(w[o] + bytes_for<L>(i), ahead);
    add_vectors<V, L, O, T>(w, x, i, acc);
  }
  if (i < n) tail_dots<V, L, O, T>(w, x, i, n - i, acc);
}

/// O outputs from `output` on, T rows of x from `row` on. Scales are FP32 as they stand (check_weight).
template <class V, class L, uint32_t O, uint32_t T>
void direct_tile(const LinearTask& task, uint32_t output, uint32_t row) {
  const MatrixView& matrix = task.matrix;
  const float* scales[O];
  for (uint32_t o = 0; o < O; ++o)
    scales[o] = reinterpret_cast<const float*>(scales_of_row(matrix, output + o, 0));
  const size_t ahead = O * bytes_for<L>(matrix.in);
  typename WatchOf<V, L>::Type watch[O];
  V total[O][T] = {};
  for (uint32_t begin = 0, block = 0; begin < matrix.in; begin += matrix.block_in, ++block) {
    const std::byte* w[O];
    const float* x[T];
    for (uint32_t o = 0; o < O; ++o)
      w[o] = weight_at<L>(matrix, output + o, begin);
    for (uint32_t t = 0; t < T; ++t)
      x[t] = task.x + (row + t) * task.x_stride + begin;
    V acc[O][T] = {};
    stream_dots<V, L, O, T>(w, x, smaller(matrix.block_in, matrix.in - begin), ahead, acc, watch);
    for (uint32_t o = 0; o < O; ++o) {
      const V scale = V::set(scales[o][block] * L::kUnit);
      for (uint32_t t = 0; t < T; ++t)
        total[o][t] = V::fma(acc[o][t], scale, total[o][t]);
    }
  }
  float* y = task.y + row * task.y_stride + (output - task.outputs.begin);
  for (uint32_t o = 0; o < O; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      y[t * task.y_stride + o] = watch[o].found() ? __builtin_nanf("") : total[o][t].sum();
  }
}

/// The same for packed codes in small groups: both sums of an output are in use all the time.
template <class V, class L, uint32_t O, uint32_t T>
void packed_tile(const LinearTask& task, uint32_t output, uint32_t row) {
  const MatrixView& matrix = task.matrix;
  const std::byte* w[O];
  const float* x[T];
  for (uint32_t o = 0; o < O; ++o)
    w[o] = weight_at<L>(matrix, output + o, 0);
  for (uint32_t t = 0; t < T; ++t)
    x[t] = task.x + (row + t) * task.x_stride;
  const size_t ahead = O * bytes_for<L>(matrix.in);
  constexpr uint32_t kLine = 64 * 8 / L::kBits;  // columns
  V total[O][T] = {};
  for (uint32_t first = 0; first < matrix.scale_stride; first += kScaleWindow) {
    const uint32_t blocks = smaller(kScaleWindow, matrix.scale_stride - first);
    alignas(64) float scales[O][kScaleWindow];
    for (uint32_t o = 0; o < O; ++o)
      decode_scales<V>(matrix, output + o, first, blocks, L::kUnit, scales[o]);
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint32_t begin = (first + block) * matrix.block_in;
      const uint32_t end = begin + smaller(matrix.block_in, matrix.in - begin);
      const auto zeros = zeros_of<V, L, O>(matrix, output, first + block);
      V acc[O][T] = {};
      uint32_t i = begin;
      for (; i + kLanes <= end; i += kLanes) {
        if (i % kLine == 0) {
          for (uint32_t o = 0; o < O; ++o)
            prefetch(w[o] + bytes_for<L>(i), ahead);
        }
        add_vectors<V, L, O, T>(w, x, i, acc, zeros);
      }
      if (i < end) {
        V rest[O][T];  // of its own, for what has an address is not kept in registers
        for (uint32_t o = 0; o < O; ++o) {
          for (uint32_t t = 0; t < T; ++t)
            rest[o][t] = acc[o][t];
        }
        tail_dots<V, L, O, T>(w, x, i, end - i, rest, zeros);
        for (uint32_t o = 0; o < O; ++o) {
          for (uint32_t t = 0; t < T; ++t)
            acc[o][t] = rest[o][t];
        }
      }
      for (uint32_t o = 0; o < O; ++o) {
        const V scale = V::set(scales[o][block]);
        for (uint32_t t = 0; t < T; ++t)
          total[o][t] = V::fma(acc[o][t], scale, total[o][t]);
      }
    }
  }
  float* y = task.y + row * task.y_stride + (output - task.outputs.begin);
  for (uint32_t o = 0; o < O; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      y[t * task.y_stride + o] = total[o][t].sum();
  }
}

template <class V, class L, uint32_t O, uint32_t T>
void packed_outputs(const LinearTask& task, uint32_t row) {
  uint32_t output = task.outputs.begin;
  for (; output + O <= task.outputs.end; output += O)
    packed_tile<V, L, O, T>(task, output, row);
  for (; output < task.outputs.end; ++output)
    packed_tile<V, L, 1, T>(task, output, row);
}

/// Decoding again for each few rows costs less than panels would, whose sums change with every group.
template <class V, class L>
void packed_rows(const LinearTask& task) {
  constexpr uint32_t kTile = V::kTileRows;
  uint32_t row = 0;
  for (; row + kTile <= task.rows; row += kTile)
    packed_outputs<V, L, V::kTileOutputs / 2, kTile>(task, row);
  for (; row < task.rows; ++row)
    packed_outputs<V, L, V::kTileOutputs, 1>(task, row);
}

template <class V, class L, uint32_t O, uint32_t T>
void direct_outputs(const LinearTask& task, uint32_t row) {
  uint32_t output = task.outputs.begin;
  for (; output + O <= task.outputs.end; output += O)
    direct_tile<V, L, O, T>(task, output, row);
  for (; output < task.outputs.end; ++output)
    direct_tile<V, L, 1, T>(task, output, row);
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
