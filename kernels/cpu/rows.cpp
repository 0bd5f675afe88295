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

/// Takes the sign from the value itself, since the sign of infinity / infinity depends on the device.
uint8_t code_of(float value, float scale) {
  const uint8_t magnitude = f32_to_f8_e4m3(std::fabs(value) / scale) & 0x7fU;
  return static_cast<uint8_t>(magnitude | (std::signbit(value) ? 0x80U : 0U));
}

void store_tile(std::byte* codes, std::byte* scale_to, std::span<const float> values) {
  float largest = 0;  // a NaN never compares larger
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

/// Multiplies each pair as (real + i imaginary) * (cos + i sin), rounded after each operation. `apart`: distance of the
/// two values of a pair; `step`: distance between pairs; `direction`: 1, or -1 for the inverse rotation.
void rotate_vector(float* x, const float* cos_sin, uint32_t pairs, uint32_t apart, uint32_t step, float direction) {
  for (uint32_t k = 0; k < pairs; ++k) {
    const float cosine = cos_sin[size_t{k} * 2];
    const float sine = direction * cos_sin[size_t{k} * 2 + 1];
    float& first = x[size_t{k} * step];
    float& second = x[size_t{k} * step + apart];
    const float real = first;
    const float imaginary = second;
    first = real * cosine - imaginary * sine;
    second = real * sine + imaginary * cosine;
  }
}

/// A finite value beyond F16's largest becomes F16's largest; infinities are kept.
uint16_t nearest_half(float value) {
  const bool is_beyond = std::fabs(value) > kLargestHalf && std::isfinite(value);
  return f32_to_f16(is_beyond ? std::copysign(kLargestHalf, value) : value);
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
      store_row<uint16_t>(stored, values, shape.cols, nearest_half);
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

void store_fp8_values(std::byte* codes, float* scales, const float* from, RowShape shape, RowRange rows) {
  for (size_t row = rows.begin; row < rows.end; ++row) {
    store_tile(codes + row * shape.cols, reinterpret_cast<std::byte*>(scales + row),
               {from + row * shape.stride, shape.cols});
  }
}

void layer_norm_row(const float* x, const float* gain, const float* bias, float epsilon, uint32_t cols, float* y) {
  double sum = 0;
  for (uint32_t i = 0; i < cols; ++i)
    sum += x[i];
  const double mean = sum / cols;
  double squares = 0;
  for (uint32_t i = 0; i < cols; ++i)
    squares += (x[i] - mean) * (x[i] - mean);
  const double inverse = 1 / std::sqrt(squares / cols + epsilon);
  for (uint32_t i = 0; i < cols; ++i)
    y[i] = static_cast<float>((x[i] - mean) * inverse) * gain[i] + bias[i];
}

void rotate(const RopeArgs& args, float* data, const float* cos_sin) {
  const float direction = args.inverse ? -1.0F : 1.0F;
  for (uint64_t row = 0; row < args.rows; ++row) {
    const float* at_position = cos_sin + (args.first_position + row) * args.dim;
    for (uint64_t head = 0; head < args.heads; ++head) {
      float* const x = data + row * args.row_stride + head * args.head_stride;
      if (args.pairs == RopePairs::neighbours) {
        rotate_vector(x, at_position, args.dim / 2, 1, 2, direction);
      } else {
        rotate_vector(x, at_position, args.dim / 2, args.dim / 2, 1, direction);
      }
    }
  }
}

}  // namespace dspack::kernels
