#include "kernels/cuda/latent_rows.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/rounding.cuh"

namespace dspack::kernels::cuda {
namespace {

static_assert(kLatentTile == device::kRoundedBlock);

/// The code of |value| / scale, with the value's own sign.
__device__ __forceinline__ uint32_t code_of(float value, float scale) {
  constexpr uint32_t kSignOfFloat = 0x80000000U;
  constexpr float kSmallestNormal = 0.015625F;  // 2^-6
  constexpr float kSubnormalUnits = 512.0F;     // in 1
  constexpr uint32_t kNan = 0x7fU;
  constexpr uint32_t kRebase = (127U - 7U) << 3U;  // of the exponent's bias
  const uint32_t bits = gpu::float_to_bits(value);
  const uint32_t sign = (bits & kSignOfFloat) >> 24U;
  const float quotient = gpu::divide(gpu::bits_to_float(bits & ~kSignOfFloat), scale);
  if (quotient != quotient) return sign | kNan;
  const float rounded = device::round_to_e4m3(quotient < device::kLargestE4m3 ? quotient : device::kLargestE4m3);
  if (rounded < kSmallestNormal) return sign | static_cast<uint32_t>(rounded * kSubnormalUnits);
  return sign | ((gpu::float_to_bits(rounded) >> 20U) - kRebase);
}

__device__ __forceinline__ void store_tile(const StoreLatentsTask& task, uint32_t tile, const float* from,
                                           uint8_t* row) {
  const uint32_t first = tile * kLatentTile + gpu::lane_index() * 4;
  float values[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    values[i] = first + i < task.shape.latent_dim ? from[first + i] : 0.0F;
  const float even = gpu::divide(device::largest_of_block(values), device::kLargestE4m3);
  const float scale = even > 0 ? even : 1.0F;
  uint32_t codes = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    codes |= code_of(values[i], scale) << 8 * i;
  if (first < task.row.scales_at) *reinterpret_cast<uint32_t*>(row + first) = codes;  // zeros behind the last value
  if (gpu::lane_index() == 0) reinterpret_cast<float*>(row + task.row.scales_at)[tile] = scale;
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

__global__ void store_latents_kernel(StoreLatentsTask task) {
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t part = gpu::block_index().x * warps + gpu::warp_index();
  if (part > task.tiles) return;
  const uint64_t first = task.live == nullptr ? 0 : *task.live;
  for (uint64_t i = gpu::block_index().y; i < task.rows; i += gpu::grid_blocks().y) {
    const float* from = task.from.data + i * task.from.stride;
    uint8_t* row = task.to + (first + i) * task.row.bytes;
    if (part < task.tiles) {
      store_tile(task, part, from, row);
    } else {
      store_rest(task, from, row);
    }
  }
}

}  // namespace

gpu::LaunchShape choose_store_latents_launch(uint32_t rows, uint32_t latent_dim) {
  constexpr uint32_t kMostWarps = 8;        // of a block
  constexpr uint32_t kMostBlocks = 65'535;  // in y
  const uint32_t parts = latent_tiles(latent_dim) + 1;
  const uint32_t warps = std::min(parts, kMostWarps);
  return {.grid_x = static_cast<unsigned>(ceil_div(parts, warps)),
          .grid_y = std::clamp(rows, 1U, kMostBlocks),
          .threads = warps * gpu::kWarpThreads};
}

void run_store_latents(gpu::Stream& stream, const StoreLatentsTask& task) {
  if (task.rows == 0) return;
  gpu::launch(stream, choose_store_latents_launch(task.rows, task.shape.latent_dim), store_latents_kernel, task);
}

}  // namespace dspack::kernels::cuda
