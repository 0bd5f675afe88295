// y = x W^T over a range of outputs. For the instruction set files only (see table.inl.h).
//
// Few rows of x (a decoded token, drafts to verify): weights go from memory through registers into the tile, once for
// each four rows.
// Many rows: a panel of some outputs by kPanelCols is decoded once and serves kPanelTokens rows.
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

// Of a panel, six rows of x (12 KiB) lie in the first-level cache, weights (64 KiB) and sums (98 KiB) in the second.
// Decoding a vector of weights costs about as much as 5 fma and serves 48; copying one of x costs about 2 and serves
// 32, and comes from the third where all of x is large (measured 2026-11, Sapphire Rapids: 16 outputs 74 GFLOP/s, 32
// 85).
constexpr uint32_t kPanelRows = 32;
constexpr uint32_t kPanelCols = 512;
constexpr uint32_t kPanelTokens = 48;
constexpr uint32_t kPanelSegments = 32;
constexpr uint32_t kMostTileTokens = 6;
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

/// Columns of a panel that lie in one block of scales.
struct Segment {
  uint32_t at = 0;  // of the panel's columns
  uint32_t cols = 0;
  uint32_t block = 0;  // of scales, in a row
  bool begins = false;
  bool ends = false;
};

/// A part of the columns of some outputs, decoded, and the same columns of a few rows of x.
struct Panel {
  alignas(64) float weights[kPanelRows][kPanelCols];
  alignas(64) float x[kMostTileTokens][kPanelCols];  // a copy: rows of x often lie a multiple of 4096 bytes apart, and
                                                     // would evict each other
  float scale[kPanelRows][kPanelSegments];
  Segment segments[kPanelSegments];
  uint32_t count = 0;  // of segments
  uint32_t begin = 0;  // column of the matrix
  uint32_t cols = 0;
};

/// Sums of a panel: lanes of the present block and of all blocks before it, for each row of x and output.
struct PanelSums {
  alignas(64) float block[kPanelTokens][kPanelRows][kLanes];
  alignas(64) float total[kPanelTokens][kPanelRows][kLanes];
};

/// Cuts the columns from `begin` on into segments, as many as a panel holds.
inline void cut_segments(const MatrixView& matrix, uint32_t begin, Panel& panel) {
  panel.begin = begin;
  panel.cols = 0;
  panel.count = 0;
  while (panel.count < kPanelSegments && panel.cols < kPanelCols && begin < matrix.in) {
    const uint32_t block = begin / matrix.block_in;
    const uint32_t block_begin = block * matrix.block_in;
    const uint32_t block_end = block_begin + smaller(matrix.block_in, matrix.in - block_begin);
    // A block goes on in the next panel from a whole vector on, so that its terms keep their lanes.
    const uint32_t room = kPanelCols - panel.cols;
    const uint32_t cols = block_end - begin <= room ? block_end - begin : room / kLanes * kLanes;
    if (cols == 0) return;
    Segment& segment = panel.segments[panel.count++];
    segment.at = panel.cols;
    segment.cols = cols;
    segment.block = block;
    segment.begins = begin == block_begin;
    begin += segment.cols;
    segment.ends = begin == block_end;
    panel.cols += segment.cols;
  }
}

template <class V, class L>
void decode_panel(const MatrixView& matrix, uint32_t output, uint32_t count, Panel& panel) {
  const uint32_t cols = panel.cols;
  for (uint32_t o = 0; o < count; ++o) {
    const std::byte* from = weight_at<L>(matrix, output + o, panel.begin);
    float* to = panel.weights[o];
    uint32_t i = 0;
    for (; i + kLanes <= cols; i += kLanes)
      L::template load<V>(from + bytes_for<L>(i)).store(to + i);
    if (i < cols) load_part<V, L>(from + bytes_for<L>(i), cols - i).store(to + i);
    for (uint32_t s = 0; s < panel.count; ++s)
      panel.scale[o][s] = scale_at<V>(matrix, output + o, panel.segments[s].block) * L::kUnit;
  }
}

/// Copies the panel's columns of `tokens` rows; x points at the first row.
template <class V>
void copy_x(const float* x, uint64_t x_stride, uint32_t tokens, Panel& panel) {
  const uint32_t cols = panel.cols;
  for (uint32_t t = 0; t < tokens; ++t) {
    const float* from = x + t * x_stride + panel.begin;
    float* to = panel.x[t];
    uint32_t i = 0;
    for (; i + kLanes <= cols; i += kLanes)
      V::load(from + i).store(to + i);
    if (i < cols) load_part<V, LoadF32>(bytes_of(from + i), cols - i).store(to + i);
  }
}

/// One segment of a tile. What vectors are stored to may be anything for the compiler, so all else is in locals; and
/// accumulators are indexed by the variables of plain loops only: those unroll, and the array stays in registers.
template <class V, uint32_t O, uint32_t T, bool kBegins, bool kEnds>
inline void panel_segment(const float* weights, const float* values, uint32_t cols, const float (&scale)[O],
                          bool is_first, float* block, float* total) {
  const std::byte* w[O];
  const float* x[T];
  for (uint32_t a = 0; a < O; ++a)
    w[a] = bytes_of(weights + a * kPanelCols);
  for (uint32_t b = 0; b < T; ++b)
    x[b] = values + b * kPanelCols;
  constexpr uint32_t kRow = kPanelRows * kLanes;  // from a row of x to the next
  V acc[O][T];
  for (uint32_t a = 0; a < O; ++a) {
    for (uint32_t b = 0; b < T; ++b)
      acc[a][b] = kBegins ? V::zero() : V::load(block + b * kRow + a * kLanes);
  }
  add_dots<V, LoadF32, O, T>(w, x, cols, acc);
  for (uint32_t a = 0; a < O; ++a) {
    const V factor = V::set(scale[a]);
    for (uint32_t b = 0; b < T; ++b) {
      const uint32_t at = b * kRow + a * kLanes;
      if constexpr (kEnds) {
        V::fma(acc[a][b], factor, is_first ? V::zero() : V::load(total + at)).store(total + at);
      } else {
        acc[a][b].store(block + at);
      }
    }
  }
}

/// Outputs o .. o+O of the panel with its T rows of x, which are rows t .. t+T of the sums.
template <class V, uint32_t O, uint32_t T>
void panel_tile(const Panel& panel, uint32_t o, uint32_t t, PanelSums& sums) {
  float* block = sums.block[t][o];
  float* total = sums.total[t][o];
  for (uint32_t s = 0; s < panel.count; ++s) {
    const Segment segment = panel.segments[s];
    float scale[O];
    for (uint32_t a = 0; a < O; ++a)
      scale[a] = panel.scale[o + a][s];
    const float* w = panel.weights[o] + segment.at;
    const float* x = panel.x[0] + segment.at;
    const bool is_first = segment.block == 0;
    if (segment.begins && segment.ends) {
      panel_segment<V, O, T, true, true>(w, x, segment.cols, scale, is_first, block, total);
    } else if (segment.begins) {
      panel_segment<V, O, T, true, false>(w, x, segment.cols, scale, is_first, block, total);
    } else if (segment.ends) {
      panel_segment<V, O, T, false, true>(w, x, segment.cols, scale, is_first, block, total);
    } else {
      panel_segment<V, O, T, false, false>(w, x, segment.cols, scale, is_first, block, total);
    }
  }
}

/// All outputs of the panel with its T rows of x.
template <class V, uint32_t T>
void multiply_panel(const Panel& panel, uint32_t count, uint32_t t, PanelSums& sums) {
  constexpr uint32_t kTile = V::kTileOutputs;
  uint32_t o = 0;
  for (; o + kTile <= count; o += kTile)
    panel_tile<V, kTile, T>(panel, o, t, sums);
  for (; o < count; ++o)
    panel_tile<V, 1, T>(panel, o, t, sums);
}

/// The same for as many rows as there are, T at most.
template <class V, uint32_t T>
void multiply_rows(const Panel& panel, uint32_t count, uint32_t t, uint32_t tokens, PanelSums& sums) {
  if constexpr (T > 1) {
    if (tokens < T) return multiply_rows<V, T - 1>(panel, count, t, tokens, sums);
  }
  multiply_panel<V, T>(panel, count, t, sums);
}

/// `count` outputs from `output` on, `tokens` rows of x from `row` on.
template <class V, class L>
void panel_outputs(const LinearTask& task, uint32_t output, uint32_t count, uint32_t row, uint32_t tokens) {
  const MatrixView& matrix = task.matrix;
  const float* x = task.x + row * task.x_stride;
  Panel panel;
  PanelSums sums;
  for (uint32_t begin = 0; begin < matrix.in; begin += panel.cols) {
    cut_segments(matrix, begin, panel);
    decode_panel<V, L>(matrix, output, count, panel);
    for (uint32_t t = 0; t < tokens; t += V::kPanelTileRows) {
      const uint32_t some = smaller(V::kPanelTileRows, tokens - t);
      copy_x<V>(x + t * task.x_stride, task.x_stride, some, panel);
      multiply_rows<V, V::kPanelTileRows>(panel, count, t, some, sums);
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
