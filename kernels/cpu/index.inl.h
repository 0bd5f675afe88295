// Scores of the lightning indexer (kernels::ChooseArgs). For the instruction set files only (see table.inl.h).
//
// The lanes of a vector are 16 positions: their keys are transposed, a tile of positions at a time, and the tile stays
// in the L1 cache while all heads of some rows are multiplied with it.
//
//   keys [positions][dim] -> tile [dim][64] -> for some heads: fma over dim -> * scale -> max(0) -> fma over heads
//
// A score is one chain of fma over the dimensions for each head, from zero, and one over the heads, so it depends only
// on its row and its position.
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Transposes the keys of `n` positions (at most 16) from `first` on to 16 columns of the tile, in FP32, padded with
/// zeros.
template <class V, class L>
void transpose_keys(const IndexScoresTask& task, uint32_t first, uint32_t n, float* columns) {
  const size_t row_bytes = bytes_for<L>(task.dim);
  for (uint32_t d = 0; d < task.dim; d += kLanes) {
    const uint32_t width = smaller(kLanes, task.dim - d);
    V square[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i) {
      const std::byte* const from = task.keys + (first + smaller(i, n - 1)) * row_bytes + bytes_for<L>(d);
      if (i >= n) {
        square[i] = V::zero();
      } else if (width == kLanes) {
        square[i] = L::template load<V>(from);
      } else {
        square[i] = load_part<V, L>(from, width);
      }
    }
    V::transpose(square);
    for (uint32_t i = 0; i < width; ++i)
      square[i].store(columns + size_t{d + i} * kIndexTile);
  }
}

/// Adds T heads from `head` on (counted over all rows) to the scores of 16 J positions.
template <class V, uint32_t J, uint32_t T>
void add_heads(const IndexScoresTask& task, const float* columns, size_t head, const V (&scale)[J], V (&scores)[J]) {
  V acc[J][T] = {};
  const float* queries = task.queries + head * task.dim;
  for (uint32_t d = 0; d < task.dim; ++d) {
    V keys[J];
    for (uint32_t j = 0; j < J; ++j)
      keys[j] = V::load(columns + size_t{d} * kIndexTile + size_t{j} * kLanes);
    for (uint32_t t = 0; t < T; ++t) {
      const V query = V::set(queries[size_t{t} * task.dim + d]);
      for (uint32_t j = 0; j < J; ++j)
        acc[j][t] = V::fma(query, keys[j], acc[j][t]);
    }
  }
  for (uint32_t t = 0; t < T; ++t) {
    const V weight = V::set(task.weights[head + t]);
    for (uint32_t j = 0; j < J; ++j)
      scores[j] = V::fma(weight, V::max(V::zero(), V::mul(acc[j][t], scale[j])), scores[j]);  // max keeps a NaN
  }
}

/// Computes a row's scores of 16 J positions of the tile.
template <class V, class L, uint32_t J>
void score_positions(const IndexScoresTask& task, uint32_t row, const float* columns, const float* scales,
                     float* scores) {
  constexpr uint32_t kTile = V::kTileRows;
  V scale[J];
  V sums[J];
  for (uint32_t j = 0; j < J; ++j) {
    scale[j] = V::mul(V::load(scales + size_t{j} * kLanes), V::set(L::kUnit));
    sums[j] = V::zero();
  }
  const size_t first = size_t{row} * task.heads;
  uint32_t head = 0;
  for (; head + kTile <= task.heads; head += kTile)
    add_heads<V, J, kTile>(task, columns, first + head, scale, sums);
  for (; head < task.heads; ++head)
    add_heads<V, J, 1>(task, columns, first + head, scale, sums);
  for (uint32_t j = 0; j < J; ++j)
    sums[j].store(scores + size_t{j} * kLanes);
}

template <class V, class L>
void index_scores(const IndexScoresTask& task) {
  constexpr uint32_t kWide = V::kTileColumns;
  for (uint32_t first = 0; first < task.positions; first += kIndexTile) {
    const uint32_t n = smaller(kIndexTile, task.positions - first);
    float scales[kIndexTile];
    for (uint32_t i = 0; i < kIndexTile; ++i)
      scales[i] = task.scales != nullptr && i < n ? task.scales[first + i] : 1.0F;
    for (uint32_t i = 0; i < n; i += kLanes)
      transpose_keys<V, L>(task, first + i, smaller(kLanes, n - i), task.tile + i);
    for (uint32_t row = 0; row < task.rows; ++row) {
      float* const scores = task.scores + row * task.scores_stride + first;
      uint32_t i = 0;
      for (; i + kWide * kLanes <= n; i += kWide * kLanes)
        score_positions<V, L, kWide>(task, row, task.tile + i, scales + i, scores + i);
      for (; i < n; i += kLanes)
        score_positions<V, L, 1>(task, row, task.tile + i, scales + i, scores + i);
    }
  }
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
