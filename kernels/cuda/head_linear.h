// provisional
#pragma once
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"
namespace dspack::kernels::cuda {
struct HeadLinearTask {
  Dtype dtype;
  Matrix weight;
  uint32_t heads, head_rows, first_row, rows_used;
  const float* x;
  uint32_t x_row_stride, x_head_stride;
  float* y;
  uint32_t y_row_stride, y_head_stride;
  uint32_t rows;
};
inline HeadLinearTask head_task(const HeadLinearArgs& a, const Matrix& w, const float* x, float* y) {
  return {a.weight.dtype,  w, a.heads,        a.head_rows,     a.first_row, a.rows_used, x, a.x_row_stride,
          a.x_head_stride, y, a.y_row_stride, a.y_head_stride, a.rows};
}
void head_linear(gpu::Stream& stream, const HeadLinearTask& task);
void head_linear_transposed(gpu::Stream& stream, const HeadLinearTask& task);
}  // namespace dspack::kernels::cuda
