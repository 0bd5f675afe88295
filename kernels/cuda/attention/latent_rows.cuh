// Stores the parts of a row of the FP8 cache (kernels/latent_rows.h), one warp each.
#pragma once

#include "kernels/cuda/attention/latent_rows.h"
#include "kernels/cuda/tokens/rounding.cuh"

namespace dspack::kernels::cuda::device {

static_assert(kLatentTile == kRoundedBlock);

/// The code of |value| / scale, with the sign of `value`.
__device__ __forceinline__ uint32_t code_of(float value, float scale) {
  constexpr uint32_t kSignOfFloat = 0x80000000U;
  constexpr float kSmallestNormal = 0.015625F;  // 2^-6
  constexpr float kSubnormalUnits = 512.0F;     // subnormal units in 1
  constexpr uint32_t kNan = 0x7fU;
  constexpr uint32_t kRebase = (127U - 7U) << 3U;  // difference of the exponent biases
  const uint32_t bits = gpu::float_to_bits(value);
  const uint32_t sign = (bits & kSignOfFloat) >> 24U;
  const float quotient = gpu::divide(gpu::bits_to_float(bits & ~kSignOfFloat), scale);
  if (quotient != quotient) return sign | kNan;
  const float rounded = round_to_e4m3(quotient < kLargestE4m3 ? quotient : kLargestE4m3);
  if (rounded < kSmallestNormal) return sign | static_cast<uint32_t>(rounded * kSubnormalUnits);
  return sign | ((gpu::float_to_bits(rounded) >> 20U) - kRebase);
}

/// Stores four adjacent values per lane; zeros after the last.
__device__ __forceinline__ void store_values(const StoreLatentsTask& task, uint32_t tile, const float (&values)[4],
                                             uint8_t* row) {
  const uint32_t first = tile * kLatentTile + gpu::lane_index() * 4;
  const float scale = scale_of(largest_of_block(values));
  uint32_t codes = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    codes |= code_of(values[i], scale) << 8 * i;
  if (first < task.row.scales_at) *reinterpret_cast<uint32_t*>(row + first) = codes;  // zeros after the last value
  if (gpu::lane_index() == 0) reinterpret_cast<float*>(row + task.row.scales_at)[tile] = scale;
}
__device__ __forceinline__ void store_tile(const StoreLatentsTask& task, uint32_t tile, const float* from,
                                           uint8_t* row) {
  const uint32_t first = tile * kLatentTile + gpu::lane_index() * 4;
  float values[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    values[i] = first + i < task.shape.latent_dim ? from[first + i] : 0.0F;
  store_values(task, tile, values, row);
}

__device__ __forceinline__ void store_rest(const StoreLatentsTask& task, const float* from, uint8_t* row) {
  const auto scales = static_cast<uint32_t>(task.row.rope_at - task.row.scales_at) / 4;
  const uint32_t spare = task.tiles + gpu::lane_index();
  if (spare < scales) reinterpret_cast<float*>(row + task.row.scales_at)[spare] = 0.0F;
  const auto pairs = static_cast<uint32_t>(task.row.bytes - task.row.rope_at) / 4;
  auto* to = reinterpret_cast<uint32_t*>(row + task.row.rope_at);
  const auto value = [&](uint32_t i) { return i < task.shape.rope_dim ? from[task.shape.latent_dim + i] : 0.0F; };
  for (uint32_t i = gpu::lane_index(); i < pairs; i += gpu::kWarpThreads)
    to[i] = gpu::floats_to_bf16s(value(2 * i), value(2 * i + 1));
}

/// Part `part` of a row: a tile of the latent, or after these the rest.
__device__ __forceinline__ void store_part(const StoreLatentsTask& task, uint32_t part, const float* from,
                                           uint8_t* row) {
  if (part < task.tiles) {
    store_tile(task, part, from, row);
  } else {
    store_rest(task, from, row);
  }
}

}  // namespace dspack::kernels::cuda::device
