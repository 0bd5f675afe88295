// A block takes one row: of the cache, or of the queries' latents.
#include "kernels/cuda/latents.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/latent_rows.cuh"

namespace dspack::kernels::cuda {
namespace {

/// Threads that each norm has by itself: its order of sums.
struct NormThreads {
  unsigned latent;
  unsigned query;
};

__device__ __forceinline__ void finish_row(const LatentsTask& task, unsigned threads, uint64_t row) {
  device::normalise_row(task.latent, row, threads, gpu::shared_memory<float>());
  const uint64_t position = device::first_position(task.rope);
  for (uint32_t pair = gpu::thread_index(); pair < task.rope.heads * (task.rope.dim / 2); pair += gpu::block_threads())
    device::rotate_pair(task.rope, position, row, pair);
  gpu::block_barrier();  // the row is as it is to be stored
  if (task.stored.to != nullptr) {
    const uint64_t first = task.stored.live == nullptr ? 0 : *task.stored.live;
    for (uint32_t col = gpu::thread_index(); col < task.stored.cols; col += gpu::block_threads())
      device::store_value(task.stored, first, row, col);
  }
  if (task.in_fp8.to != nullptr) {
    const uint64_t first = task.in_fp8.live == nullptr ? 0 : *task.in_fp8.live;
    const float* from = task.in_fp8.from.data + row * task.in_fp8.from.stride;
    for (uint32_t part = gpu::warp_index(); part <= task.in_fp8.tiles; part += gpu::block_threads() / gpu::kWarpThreads)
      device::store_part(task.in_fp8, part, from, task.in_fp8.to + (first + row) * task.in_fp8.row.bytes);
  }
}

__global__ void __launch_bounds__(kMostNormThreads) latents_kernel(LatentsTask task, NormThreads threads) {
  gpu::let_next_begin();
  gpu::wait_for_previous();
  for (uint64_t row = gpu::block_index().y; row < task.latent.rows; row += gpu::grid_blocks().y) {
    if (gpu::block_index().x == 0) {
      finish_row(task, threads.latent, row);
    } else {
      device::normalise_row(task.query, row, threads.query, gpu::shared_memory<float>());
      device::round_normalised(task.query, row);
    }
  }
}

}  // namespace

gpu::LaunchShape choose_latents_launch(uint32_t rows, uint32_t latent_dim, uint32_t query_cols) {
  gpu::LaunchShape shape = choose_norm_launch(rows, latent_dim);
  if (query_cols == 0) return shape;
  const gpu::LaunchShape query = choose_norm_launch(rows, query_cols);
  shape.grid_x = 2;
  shape.threads = std::max(shape.threads, query.threads);
  shape.shared_bytes = std::max(shape.shared_bytes, query.shared_bytes);
  return shape;
}

void run_latents(gpu::Stream& stream, const LatentsTask& task) {
  const uint32_t rows = task.latent.rows;
  if (rows == 0) return;
  const NormThreads threads{.latent = choose_norm_launch(rows, task.latent.cols).threads,
                            .query = choose_norm_launch(rows, std::max(task.query.cols, 1U)).threads};
  gpu::launch_overlapping(stream, choose_latents_launch(rows, task.latent.cols, task.query.cols), latents_kernel, task,
                          threads);
}

}  // namespace dspack::kernels::cuda
