// Sums down the columns of a part of a matrix (absorbing MLA's keys). For the instruction set files only.
//
// Each column is one chain: fma over the rows that share a scale, then fma with the scale. Columns are divided where
// the scale changes, so the 16 columns of a vector share one.
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/linear.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Computes `columns` (16 J, or at most 16 if J is 1) for T rows of x from `row` on.
template <class V, class L, uint32_t J, uint32_t T>
void columns_tile(const ColumnsTask& task, RowRange columns, uint32_t row) {
  const MatrixView& matrix = task.matrix;
  const uint32_t width = columns.end - columns.begin;
  const size_t row_bytes = bytes_for<L>(matrix.in);
  V total[J][T] = {};
  for (uint32_t d = task.matrix_rows.begin; d < task.matrix_rows.end;) {
    const uint32_t run = smaller(matrix.block_out - d % matrix.block_out, task.matrix_rows.end - d);
    const std::byte* w = weight_at<L>(matrix, d, columns.begin);
    const float* x[T];
    for (uint32_t t = 0; t < T; ++t)
      x[t] = task.x + (row + t) * task.x_stride + (d - task.matrix_rows.begin);
    const auto zeros = zeros_of<V, L, 1>(matrix, d, 1, columns.begin / matrix.block_in);
    V acc[J][T] = {};
    if constexpr (J == 1) {
      if (width < kLanes) {
        add_part_columns<V, L, T>(w, row_bytes, width, x, run, acc, zeros);
      } else {
        add_columns<V, L, 1, T>(w, row_bytes, x, run, acc, zeros);
      }
    } else {
      add_columns<V, L, J, T>(w, row_bytes, x, run, acc, zeros);
    }
    const V scale = V::set(scale_at<V>(matrix, d, columns.begin / matrix.block_in) * L::kUnit);
    for (uint32_t j = 0; j < J; ++j) {
      for (uint32_t t = 0; t < T; ++t)
        total[j][t] = V::fma(acc[j][t], scale, total[j][t]);
    }
    d += run;
  }
  for (uint32_t t = 0; t < T; ++t) {
    float* y = task.y + (row + t) * task.y_stride + (columns.begin - task.columns.begin);
    for (uint32_t j = 0; j < J; ++j) {
      if (width < kLanes) {
        store_part(total[j][t], y, width);
      } else {
        total[j][t].store(y + size_t{j} * kLanes);
      }
    }
  }
}

template <class V, class L, uint32_t J>
void columns_rows(const ColumnsTask& task, RowRange columns) {
  uint32_t row = 0;
  for (; row + V::kTileRows <= task.rows; row += V::kTileRows)
    columns_tile<V, L, J, V::kTileRows>(task, columns, row);
  for (; row < task.rows; ++row)
    columns_tile<V, L, J, 1>(task, columns, row);
}

template <class V, class L>
void columns_range(const ColumnsTask& task) {
  constexpr uint32_t kWide = V::kTileColumns;
  for (uint32_t j = task.columns.begin; j < task.columns.end;) {
    const uint32_t block_end = j + (task.matrix.block_in - j % task.matrix.block_in);
    const uint32_t left = smaller(block_end, task.columns.end) - j;
    const uint32_t vectors = left >= kWide * kLanes ? kWide : left >= 2 * kLanes ? 2 : 1;  // 2: a group of 32
    const uint32_t width = smaller(left, vectors * kLanes);
    const RowRange part{j, j + width};
    if (vectors == kWide) {
      columns_rows<V, L, kWide>(task, part);
    } else if (vectors == 2) {
      columns_rows<V, L, 2>(task, part);
    } else {
      columns_rows<V, L, 1>(task, part);
    }
    j += width;
  }
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
