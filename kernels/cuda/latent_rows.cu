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
  const float scale = device::scale_of(device::largest_of_block(values));
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

/// A warp for each row, a piece of 128 values at a time: four of each lane, which are one word where codes are aligned.
__global__ void store_fp8_rows_kernel(StoreFp8RowsTask task) {
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint64_t first = task.live == nullptr ? 0 : *task.live;
  const bool has_words = task.cols % 4 == 0 && reinterpret_cast<uint64_t>(task.codes) % 4 == 0;
  for (uint64_t i = gpu::block_index().x * warps + gpu::warp_index(); i < task.rows;
       i += uint64_t{gpu::grid_blocks().x} * warps) {
    const float* from = task.from.data + i * task.from.stride;
    uint8_t* to = task.codes + (first + i) * task.cols;
    float largest = 0;
    for (uint32_t begin = gpu::lane_index() * 4; begin - gpu::lane_index() * 4 < task.cols; begin += kLatentTile) {
      float values[4];
#pragma unroll
      for (unsigned j = 0; j < 4; ++j)
        values[j] = begin + j < task.cols ? from[begin + j] : 0.0F;
      const float of_piece = device::largest_of_block(values);
      largest = of_piece > largest ? of_piece : largest;
    }
    const float scale = device::scale_of(largest);
    if (gpu::lane_index() == 0) task.scales[first + i] = scale;
    for (uint32_t begin = gpu::lane_index() * 4; begin < task.cols; begin += kLatentTile) {
      uint32_t codes = 0;
#pragma unroll
      for (unsigned j = 0; j < 4; ++j)
        codes |= (begin + j < task.cols ? code_of(from[begin + j], scale) : 0) << 8 * j;
      if (has_words) {
        *reinterpret_cast<uint32_t*>(to + begin) = codes;
      } else {
        for (unsigned j = 0; j < 4 && begin + j < task.cols; ++j)
          to[begin + j] = static_cast<uint8_t>(codes >> 8 * j);
      }
    }
  }
}

}  // namespace

gpu::LaunchShape choose_store_fp8_rows_launch(uint32_t rows) {
  constexpr uint32_t kMostWarps = 4;
  constexpr uint64_t kMostRowBlocks = 1U << 20;
  const uint32_t warps = std::clamp(rows, 1U, kMostWarps);
  return {.grid_x = static_cast<unsigned>(std::clamp<uint64_t>(ceil_div(rows, warps), 1, kMostRowBlocks)),
          .threads = warps * gpu::kWarpThreads};
}

void run_store_fp8_rows(gpu::Stream& stream, const StoreFp8RowsTask& task) {
  if (task.rows == 0 || task.cols == 0) return;
  gpu::launch(stream, choose_store_fp8_rows_launch(task.rows), store_fp8_rows_kernel, task);
}

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
