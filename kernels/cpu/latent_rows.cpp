#include "kernels/cpu/latent_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

namespace dspack::kernels {
namespace {

constexpr float kLargestE4m3 = 448.0F;

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}
template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
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

void store_row(std::byte* to, LatentShape shape, const Fp8Row& row, const float* from) {
  std::memset(to, 0, row.bytes);
  for (uint32_t begin = 0; begin < shape.latent_dim; begin += kLatentTile) {
    const uint32_t count = std::min(kLatentTile, shape.latent_dim - begin);
    store_tile(to + begin, to + row.scales_at + size_t{begin / kLatentTile} * sizeof(float), {from + begin, count});
  }
  for (uint32_t i = 0; i < shape.rope_dim; ++i)
    put(to + row.rope_at + size_t{i} * 2, f32_to_bf16(from[shape.latent_dim + i]));
}

void load_row(float* to, LatentShape shape, const Fp8Row& row, const std::byte* from) {
  for (uint32_t i = 0; i < shape.latent_dim; ++i) {
    const auto scale = get<float>(from + row.scales_at + size_t{i / kLatentTile} * sizeof(float));
    to[i] = f8_e4m3_to_f32(get<uint8_t>(from + i)) * scale;
  }
  for (uint32_t i = 0; i < shape.rope_dim; ++i)
    to[shape.latent_dim + i] = bf16_to_f32(get<uint16_t>(from + row.rope_at + size_t{i} * 2));
}

}  // namespace

void store_latent_rows(std::byte* to, LatentShape shape, const float* from, uint64_t stride, RowRange rows) {
  const Fp8Row row = fp8_row(shape);
  for (uint64_t i = rows.begin; i < rows.end; ++i)
    store_row(to + i * row.bytes, shape, row, from + i * stride);
}

void load_latent_rows(float* to, uint64_t stride, const std::byte* from, LatentShape shape, RowRange rows) {
  const Fp8Row row = fp8_row(shape);
  for (uint64_t i = rows.begin; i < rows.end; ++i)
    load_row(to + i * stride, shape, row, from + i * row.bytes);
}

}  // namespace dspack::kernels
