// Rows of a KV cache, read back from their bytes: what store_rows and store_latents of kernels/ops.h have stored, by
// the conversions of format/dtype.h and the definition in kernels/latent_rows.h.
// Threads: pure functions. Errors: fail the test case.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "format/dtype.h"
#include "kernels/latent_rows.h"

namespace dspack::test {

template <class T>
T stored_at(std::span<const uint8_t> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// All values of dense rows of F32, BF16 or F16.
inline std::vector<float> decoded_rows(std::span<const uint8_t> bytes, Dtype dtype) {
  REQUIRE(bytes.size() % bytes_of(dtype, 1) == 0);
  std::vector<float> values(bytes.size() / bytes_of(dtype, 1));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = dtype == Dtype::bf16  ? bf16_to_f32(stored_at<uint16_t>(bytes, i * 2))
                : dtype == Dtype::f16 ? f16_to_f32(stored_at<uint16_t>(bytes, i * 2))
                                      : stored_at<float>(bytes, i * 4);
  }
  return values;
}

/// [rows, latent_dim + rope_dim] of FP8 rows: code times scale, rounded once.
inline std::vector<float> decoded_latents(std::span<const uint8_t> bytes, kernels::LatentShape shape) {
  const kernels::Fp8Row layout = kernels::fp8_row(shape);
  REQUIRE(bytes.size() % layout.bytes == 0);
  std::vector<float> values;
  for (size_t row = 0; row < bytes.size(); row += layout.bytes) {
    for (uint32_t i = 0; i < shape.latent_dim; ++i) {
      const auto scale =
          stored_at<float>(bytes, row + layout.scales_at + size_t{i / kernels::kLatentTile} * sizeof(float));
      values.push_back(f8_e4m3_to_f32(stored_at<uint8_t>(bytes, row + i)) * scale);
    }
    for (uint32_t i = 0; i < shape.rope_dim; ++i)
      values.push_back(bf16_to_f32(stored_at<uint16_t>(bytes, row + layout.rope_at + size_t{i} * 2)));
  }
  return values;
}

/// Of rows in a cache of any of these types.
inline std::vector<float> decoded_cache(std::span<const uint8_t> bytes, Dtype dtype, kernels::LatentShape shape) {
  return dtype == Dtype::f8_e4m3 ? decoded_latents(bytes, shape) : decoded_rows(bytes, dtype);
}

}  // namespace dspack::test
