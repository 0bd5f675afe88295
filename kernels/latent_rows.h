// Layout of the rows of a latent KV cache: bytes per row, and the offsets of the parts of an FP8 row.
//
// F32, BF16 and F16: the latent, then the rotary key. FP8 (Dtype::f8_e4m3), here of V3:
//
//   0            512        528         656
//   | 512 codes  | 4 scales | 64 values |    codes: E4M3, a scale for each tile of 128, the last may be ragged
//   | latent     | FP32     | BF16      |    value = code * scale, rounded to FP32; the rotary key stays BF16
//
// That is the FP8 cache of FlashMLA; the scale is that of DeepSeek-V3's act_quant, the tile's largest magnitude / 448.
// For other dimensions each part is zero-padded to a multiple of 16 bytes, so that parts and rows begin where 16 bytes
// can be read at once. Values that are not finite never become finite: a NaN becomes a NaN code and does not affect the
// scale; an infinity makes the scale infinite, and every value of its tile NaN. A tile whose values are all zero, or so
// small that the scale would be 0, has scale 1.
// Threads: pure functions. Errors: none; dimensions are below 2^31.
#pragma once

#include <cstdint>

#include "format/dtype.h"

namespace dspack::kernels {

struct LatentShape {
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
};

inline constexpr uint32_t kLatentTile = 128;

/// Byte offsets within a row; the codes begin at 0.
struct Fp8Row {
  uint64_t scales_at = 0;
  uint64_t rope_at = 0;
  uint64_t bytes = 0;  // size of the row
};

[[nodiscard]] constexpr Fp8Row fp8_row(LatentShape shape) {
  constexpr auto whole = [](uint64_t bytes) { return (bytes + 15) / 16 * 16; };
  const uint64_t tiles = (uint64_t{shape.latent_dim} + kLatentTile - 1) / kLatentTile;
  Fp8Row row;
  row.scales_at = whole(shape.latent_dim);
  row.rope_at = row.scales_at + whole(tiles * 4);
  row.bytes = row.rope_at + whole(uint64_t{shape.rope_dim} * 2);
  return row;
}

/// Bytes of a row stored as f32, bf16, f16 or f8_e4m3.
[[nodiscard]] inline uint64_t cache_row_bytes(Dtype dtype, LatentShape shape) {
  if (dtype == Dtype::f8_e4m3) return fp8_row(shape).bytes;
  return bytes_of(dtype, uint64_t{shape.latent_dim} + shape.rope_dim);
}

}  // namespace dspack::kernels
