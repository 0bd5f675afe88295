// y = x W^T over a range of outputs. For the instruction set files only (see table.inl.h).
//
// Few rows of x (a decoded token, drafts to verify): weights go from memory through registers into the tile, once for
// each four rows.
// Many rows: a panel of a few outputs by kPanelCols is decoded into the first-level cache and serves kPanelTokens rows.
//
//   outputs  |  a few rows of W, all of `in`, block by block        x: tiles of kPanelTokens rows, so that they stay
//            v  [ block 0 | block 1 | ... | ragged ]                in the second-level cache while W streams past
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/scales.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

// 16 x 128 weights and 32 x 128 values of x are 24 KiB of the first-level cache; a block of 128 is one panel. Decoding
// a vector of weights costs about as much as 5 fma and serves 32; copying one of x costs about 2 and serves 16.
constexpr uint32_t kPanelRows = 16;
constexpr uint32_t kPanelCols = 128;
constexpr uint32_t kPanelTokens = 32;
// Up to here decoding a weight again for each four rows costs less than the detour (measured 2026-11, Zen 4).
constexpr uint32_t kDirectTokens = 12;

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

/// Asks for the same place of the next O rows of the matrix; beyond its end the request is void.
inline void prefetch(const std::byte* from, size_t ahead) {
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(from) + ahead;               // arithmetic on a pointer may not leave its array
  __builtin_prefetch(reinterpret_cast<const void*>(address));  // NOLINT(performance-no-int-to-ptr)
}

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

/// Sums of a panel: lanes of the present block and of all blocks before it, for each row of x and output.
struct PanelSums {
  alignas(64) float block[kPanelTokens][kPanelRows][kLanes];
  alignas(64) float total[kPanelTokens][kPanelRows][kLanes];
};

/// A part of one scale block, decoded.
struct Panel {
  alignas(64) float weights[kPanelRows][kPanelCols];
  alignas(64) float x[kPanelTokens][kPanelCols];  // a copy: rows of x often lie a multiple of 4096 bytes apart, and
                                                  // would evict each other
  float scale[kPanelRows];
  uint32_t begin = 0;  // column of the matrix
  uint32_t cols = 0;
  bool first_block = false;  // totals start here
  bool block_begins = false;
  bool block_ends = false;
};

template <class V, class L>
void decode_panel(const MatrixView& matrix, uint32_t output, uint32_t count, Panel& panel) {
  for (uint32_t o = 0; o < count; ++o) {
    const std::byte* from = weight_at<L>(matrix, output + o, panel.begin);
    uint32_t i = 0;
    for (; i + kLanes <= panel.cols; i += kLanes) {
      L::template load<V>(from + bytes_for<L>(i)).store(panel.weights[o] + i);
    }
    if (i < panel.cols) load_part<V, L>(from + bytes_for<L>(i), panel.cols - i).store(panel.weights[o] + i);
    panel.scale[o] = scale_at<V>(matrix, output + o, panel.begin / matrix.block_in) * L::kUnit;
  }
}

/// Copies columns of `tokens` rows; x points at the first row.
template <class V>
void copy_x(const float* x, uint64_t x_stride, uint32_t tokens, Panel& panel) {
  for (uint32_t t = 0; t < tokens; ++t) {
    const float* from = x + t * x_stride + panel.begin;
    uint32_t i = 0;
    for (; i + kLanes <= panel.cols; i += kLanes)
      V::load(from + i).store(panel.x[t] + i);
    if (i < panel.cols) load_part<V, LoadF32>(bytes_of(from + i), panel.cols - i).store(panel.x[t] + i);
  }
}

/// Outputs o .. o+O of the panel with rows t .. t+T. Accumulators are indexed by the variables of plain loops only:
/// those unroll, and the compiler can keep the array in registers.
template <class V, uint32_t O, uint32_t T>
void panel_tile(const Panel& panel, uint32_t o, uint32_t t, PanelSums& sums) {
  const std::byte* w[O];
  const float* x[T];
  for (uint32_t a = 0; a < O; ++a)
    w[a] = bytes_of(panel.weights[o + a]);
  for (uint32_t b = 0; b < T; ++b)
    x[b] = panel.x[t + b];
  V acc[O][T] = {};
  if (!panel.block_begins) {
    for (uint32_t a = 0; a < O; ++a) {
      for (uint32_t b = 0; b < T; ++b)
        acc[a][b] = V::load(sums.block[t + b][o + a]);
    }
  }
  add_dots<V, LoadF32, O, T>(w, x, panel.cols, acc);
  if (!panel.block_ends) {
    for (uint32_t a = 0; a < O; ++a) {
      for (uint32_t b = 0; b < T; ++b)
        acc[a][b].store(sums.block[t + b][o + a]);
    }
    return;
  }
  for (uint32_t a = 0; a < O; ++a) {
    const V scale = V::set(panel.scale[o + a]);
    for (uint32_t b = 0; b < T; ++b) {
      float* total = sums.total[t + b][o + a];
      V::fma(acc[a][b], scale, panel.first_block ? V::zero() : V::load(total)).store(total);
    }
  }
}

template <class V, uint32_t O>
void panel_rows(const Panel& panel, uint32_t o, uint32_t tokens, PanelSums& sums) {
  constexpr uint32_t kTile = V::kTileRows;
  uint32_t t = 0;
  for (; t + kTile <= tokens; t += kTile)
    panel_tile<V, O, kTile>(panel, o, t, sums);
  for (; t < tokens; ++t)
    panel_tile<V, O, 1>(panel, o, t, sums);
}

template <class V>
void multiply_panel(const Panel& panel, uint32_t count, uint32_t tokens, PanelSums& sums) {
  constexpr uint32_t kTile = V::kTileOutputs;
  uint32_t o = 0;
  for (; o + kTile <= count; o += kTile)
    panel_rows<V, kTile>(panel, o, tokens, sums);
  for (; o < count; ++o)
    panel_rows<V, 1>(panel, o, tokens, sums);
}

/// `count` outputs from `output` on, `tokens` rows of x from `row` on.
template <class V, class L>
void panel_outputs(const LinearTask& task, uint32_t output, uint32_t count, uint32_t row, uint32_t tokens) {
  const MatrixView& matrix = task.matrix;
  const float* x = task.x + row * task.x_stride;
  Panel panel;
  PanelSums sums;
  for (uint32_t begin = 0; begin < matrix.in; begin += matrix.block_in) {
    const uint32_t end = begin + smaller(matrix.block_in, matrix.in - begin);
    for (panel.begin = begin; panel.begin < end; panel.begin += panel.cols) {
      panel.cols = smaller(kPanelCols, end - panel.begin);
      panel.first_block = begin == 0;
      panel.block_begins = panel.begin == begin;
      panel.block_ends = panel.begin + panel.cols == end;
      decode_panel<V, L>(matrix, output, count, panel);
      copy_x<V>(x, task.x_stride, tokens, panel);
      multiply_panel<V>(panel, count, tokens, sums);
    }
  }
  float* y = task.y + row * task.y_stride + (output - task.outputs.begin);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t o = 0; o < count; ++o)
      y[t * task.y_stride + o] = V::load(sums.total[t][o]).sum();
  }
}

template <class V, class L>
void linear_rows(const LinearTask& task) {
  if constexpr (L::kBits < 8) return packed_rows<V, L>(task);
  uint32_t row = 0;
  if (task.rows > kDirectTokens) {
    for (; row < task.rows; row += smaller(kPanelTokens, task.rows - row)) {
      const uint32_t tokens = smaller(kPanelTokens, task.rows - row);
      for (uint32_t output = task.outputs.begin; output < task.outputs.end; output += kPanelRows) {
        panel_outputs<V, L>(task, output, smaller(kPanelRows, task.outputs.end - output), row, tokens);
      }
    }
    return;
  }
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
