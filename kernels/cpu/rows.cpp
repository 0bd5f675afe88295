#include "kernels/cpu/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

namespace dspack::kernels {
namespace {

template <class Stored, class Convert>
void store_row(std::byte* to, const float* from, uint32_t cols, Convert convert) {
  for (uint32_t i = 0; i < cols; ++i) {
    const Stored value = convert(from[i]);
    std::memcpy(to + size_t{i} * sizeof(Stored), &value, sizeof(Stored));
  }
}

constexpr float kLargestE4m3 = 448.0F;

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

/// The sign is the value's own, so that no device's idea of the sign of infinity / infinity is stored.
uint8_t code_of(float value, float scale) {
  const uint8_t magnitude = f32_to_f8_e4m3(std::fabs(value) / scale) & 0x7fU;
  return static_cast<uint8_t>(magnitude | (std::signbit(value) ? 0x80U : 0U));
}

void store_tile(std::byte* codes, std::byte* scale_to, std::span<const float> values) {
  float largest = 0;  // no NaN is larger
  for (const float value : values)
    largest = std::fabs(value) > largest ? std::fabs(value) : largest;
  float scale = largest / kLargestE4m3;
  if (!(scale > 0)) scale = 1.0F;
  put(scale_to, scale);
  for (size_t i = 0; i < values.size(); ++i)
    put(codes + i, code_of(values[i], scale));
}

void store_latent(std::byte* to, LatentShape shape, const Fp8Row& row, const float* from) {
  std::memset(to, 0, row.bytes);
  for (uint32_t begin = 0; begin < shape.latent_dim; begin += kLatentTile) {
    const uint32_t count = std::min(kLatentTile, shape.latent_dim - begin);
    store_tile(to + begin, to + row.scales_at + size_t{begin / kLatentTile} * sizeof(float), {from + begin, count});
  }
  for (uint32_t i = 0; i < shape.rope_dim; ++i)
    put(to + row.rope_at + size_t{i} * 2, f32_to_bf16(from[shape.latent_dim + i]));
}

/// (x[2k] + i x[2k+1]) * (cos + i sin), rounded after each operation.
void rotate_vector(float* x, const float* cos_sin, uint32_t dim) {
  for (uint32_t k = 0; k < dim; k += 2) {
    const float real = x[k];
    const float imaginary = x[k + 1];
    x[k] = real * cos_sin[k] - imaginary * cos_sin[k + 1];
    x[k + 1] = real * cos_sin[k + 1] + imaginary * cos_sin[k];
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

void store_latent_rows(std::byte* to, LatentShape shape, const float* from, uint64_t stride, RowRange rows) {
  const Fp8Row row = fp8_row(shape);
  for (uint64_t i = rows.begin; i < rows.end; ++i)
    store_latent(to + i * row.bytes, shape, row, from + i * stride);
}

void rotate(const RopeArgs& args, float* data, const float* cos_sin) {
  for (uint64_t row = 0; row < args.rows; ++row) {
    const float* at_position = cos_sin + (args.first_position + row) * args.dim;
    for (uint64_t head = 0; head < args.heads; ++head) {
      rotate_vector(data + row * args.row_stride + head * args.head_stride, at_position, args.dim);
    }
  }
}

}  // namespace dspack::kernels
