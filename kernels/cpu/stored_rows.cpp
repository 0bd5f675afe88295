#include "kernels/cpu/stored_rows.h"

#include <cstring>

namespace dspack::kernels {
namespace {

template <class Stored, class Convert>
void store_row(std::byte* to, const float* from, uint32_t cols, Convert convert) {
  for (uint32_t i = 0; i < cols; ++i) {
    const Stored value = convert(from[i]);
    std::memcpy(to + size_t{i} * sizeof(Stored), &value, sizeof(Stored));
  }
}

template <class Stored, class Convert>
void load_row(float* to, const std::byte* from, uint32_t cols, Convert convert) {
  for (uint32_t i = 0; i < cols; ++i) {
    Stored value;
    std::memcpy(&value, from + size_t{i} * sizeof(Stored), sizeof(Stored));
    to[i] = convert(value);
  }
}

}  // namespace

void store_values(std::byte* to, Dtype dtype, const float* from, RowShape shape, RowRange rows) {
  const size_t row_bytes = bytes_of(dtype, shape.cols);
  for (size_t row = rows.begin; row < rows.end; ++row) {
    std::byte* stored = to + row * row_bytes;
    const float* values = from + row * shape.stride;
    if (dtype == Dtype::bf16) {
      store_row<uint16_t>(stored, values, shape.cols, f32_to_bf16);
    } else if (dtype == Dtype::f16) {
      store_row<uint16_t>(stored, values, shape.cols, f32_to_f16);
    } else {
      std::memcpy(stored, values, row_bytes);
    }
  }
}

void load_values(float* to, RowShape shape, const std::byte* from, Dtype dtype, RowRange rows) {
  const size_t row_bytes = bytes_of(dtype, shape.cols);
  for (size_t row = rows.begin; row < rows.end; ++row) {
    const std::byte* stored = from + row * row_bytes;
    float* values = to + row * shape.stride;
    if (dtype == Dtype::bf16) {
      load_row<uint16_t>(values, stored, shape.cols, bf16_to_f32);
    } else if (dtype == Dtype::f16) {
      load_row<uint16_t>(values, stored, shape.cols, f16_to_f32);
    } else {
      std::memcpy(values, stored, row_bytes);
    }
  }
}

}  // namespace dspack::kernels
