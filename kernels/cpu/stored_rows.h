// Rows of FP32 values to and from their stored form: dense, in FP32, BF16 or F16.
// Threads: pure but for the output. Lifetime: pointers are borrowed for the call. Errors: none; shapes have been
// checked.
#pragma once

#include <cstddef>

#include "format/dtype.h"
#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {

/// Of FP32 rows, in values.
struct RowShape {
  uint32_t cols = 0;
  uint32_t stride = 0;
};

/// Rounds to the nearest, ties to even.
void store_values(std::byte* to, Dtype dtype, const float* from, RowShape shape, RowRange rows);
void load_values(float* to, RowShape shape, const std::byte* from, Dtype dtype, RowRange rows);

}  // namespace dspack::kernels
