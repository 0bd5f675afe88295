// Single values of the FP8 rows of a latent cache (kernels/latent_rows.h).
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/decode.cuh"
#include "kernels/latent_rows.h"

namespace dspack::kernels::cuda::device {

/// The scale of the tile in which a column of the latent lies.
__device__ __forceinline__ float fp8_row_scale(const uint8_t* row, const Fp8Row& layout, uint32_t column) {
  return reinterpret_cast<const float*>(row + layout.scales_at)[column / kLatentTile];
}

/// Column `column` of [latent | rotary key].
__device__ __forceinline__ float fp8_row_value(const uint8_t* row, const Fp8Row& layout, uint32_t latent_dim,
                                               uint32_t column) {
  if (column >= latent_dim) return StoredBf16::decode_one(row + layout.rope_at, column - latent_dim);
  return StoredF8::decode_one(row, column) * fp8_row_scale(row, layout, column);
}

}  // namespace dspack::kernels::cuda::device
