#include "kernels/cuda/attention/latent_rows.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/attention/latent_rows.cuh"

namespace dspack::kernels::cuda {
namespace {

__global__ void store_latents_kernel(StoreLatentsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t part = gpu::block_index().x * warps + gpu::warp_index();
  if (part > task.tiles) return;
  const uint64_t first = task.live == nullptr ? 0 : *task.live;
  for (uint64_t i = gpu::block_index().y; i < task.rows; i += gpu::grid_blocks().y) {
    const float* from = task.from.data + i * task.from.stride;
    uint8_t* row = task.to + (first + i) * task.row.bytes;
    device::store_part(task, part, from, row);
  }
}

/// One warp per row, 128 values at a time: four per lane, stored as one word if codes are aligned.
__global__ void store_fp8_rows_kernel(StoreFp8RowsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
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
        codes |= (begin + j < task.cols ? device::code_of(from[begin + j], scale) : 0) << 8 * j;
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
  constexpr uint32_t kMaxWarps = 4;
  constexpr uint64_t kMaxRowBlocks = 1U << 20;
  const uint32_t warps = std::clamp(rows, 1U, kMaxWarps);
  return {.grid_x = static_cast<unsigned>(std::clamp<uint64_t>(ceil_div(rows, warps), 1, kMaxRowBlocks)),
          .threads = warps * gpu::kWarpThreads};
}

void run_store_fp8_rows(gpu::Stream& stream, const StoreFp8RowsTask& task) {
  if (task.rows == 0 || task.cols == 0) return;
  gpu::launch_overlapping(stream, choose_store_fp8_rows_launch(task.rows), store_fp8_rows_kernel, task);
}

gpu::LaunchShape choose_store_latents_launch(uint32_t rows, uint32_t latent_dim) {
  constexpr uint32_t kMaxWarps = 8;        // warps per block
  constexpr uint32_t kMaxBlocks = 65'535;  // in y
  const uint32_t parts = latent_tiles(latent_dim) + 1;
  const uint32_t warps = std::min(parts, kMaxWarps);
  return {.grid_x = static_cast<unsigned>(ceil_div(parts, warps)),
          .grid_y = std::clamp(rows, 1U, kMaxBlocks),
          .threads = warps * gpu::kWarpThreads};
}

void run_store_latents(gpu::Stream& stream, const StoreLatentsTask& task) {
  if (task.rows == 0) return;
  gpu::launch_overlapping(stream, choose_store_latents_launch(task.rows, task.shape.latent_dim), store_latents_kernel,
                          task);
}

}  // namespace dspack::kernels::cuda
