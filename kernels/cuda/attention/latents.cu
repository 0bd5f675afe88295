// A block takes one row: of the cache, or of the queries' latents.
#include "kernels/cuda/attention/latents.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "kernels/cuda/attention/latent_rows.cuh"
#include "kernels/cuda/tokens/elementwise.cuh"

namespace dspack::kernels::cuda {
namespace {

/// Threads of each norm by itself, which fix its order of sums.
struct NormThreads {
  unsigned latent;
  unsigned query;
};

/// Pairs of the rotary key for one thread, whose first pair is loaded while the block computes the norm's sum. Threads
/// that the norm does not use take them, if there are any.
struct KeyPairs {
  uint32_t mine;   // first pair; none if not below `count`
  uint32_t count;  // pairs in total
  uint32_t turn;
};

__device__ __forceinline__ KeyPairs pairs_of_thread(const RotateTask& rope, unsigned norm_threads) {
  const unsigned first = norm_threads < gpu::block_threads() ? norm_threads : 0;
  const bool has_none = gpu::thread_index() < first;
  const uint32_t count = rope.heads * (rope.dim / 2);
  return {.mine = has_none ? count : gpu::thread_index() - first, .count = count, .turn = gpu::block_threads() - first};
}

/// One row of the cache.
struct CacheRow {
  const LatentsTask& task;
  uint64_t row;
  uint64_t stored_at;  // row offsets
  uint64_t in_fp8_at;

  __device__ __forceinline__ void store(const float* from, float value) const {
    if (task.stored.to == nullptr) return;
    const auto column = static_cast<uint64_t>(from - (task.stored.from.data + row * task.stored.from.stride));
    device::store_as(task.stored, (stored_at + row) * task.stored.cols + column, value);
  }
  /// Stores four adjacent values of the latent per lane. Call with a whole warp.
  __device__ __forceinline__ void store_latent(uint32_t column, const float4& values) const {
    const uint32_t cols = task.latent.cols;
    if (task.stored.to != nullptr && column < cols)
      device::store_four_as(task.stored, (stored_at + row) * task.stored.cols + column, values, cols - column);
    const float each[4] = {values.x, values.y, values.z, values.w};
    if (task.in_fp8.to != nullptr) device::store_values(task.in_fp8, column / kLatentTile, each, in_fp8_row());
  }
  [[nodiscard]] __device__ __forceinline__ uint8_t* in_fp8_row() const {
    return task.in_fp8.to + (in_fp8_at + row) * task.in_fp8.row.bytes;
  }
};

template <bool kFours>
__device__ __forceinline__ void finish_row(const LatentsTask& task, unsigned threads, const device::NormGains& gains,
                                           uint64_t row) {
  const uint64_t position = device::first_position(task.rope);
  const CacheRow cache{.task = task,
                       .row = row,
                       .stored_at = task.stored.live == nullptr ? 0 : *task.stored.live,
                       .in_fp8_at = task.in_fp8.live == nullptr ? 0 : *task.in_fp8.live};
  const KeyPairs pairs = pairs_of_thread(task.rope, threads);
  device::RotatedPair pair;
  if (pairs.mine < pairs.count) pair = device::load_pair(task.rope, position, row, pairs.mine);
  device::normalise_row<kFours>(task.latent, row, threads, gpu::shared_memory<float>(), gains,
                                [&](uint32_t column, const float4& values) { cache.store_latent(column, values); });
  for (uint32_t index = pairs.mine; index < pairs.count; index += pairs.turn) {
    if (index != pairs.mine) pair = device::load_pair(task.rope, position, row, index);
    pair.turn();
    cache.store(pair.at, pair.real);
    cache.store(pair.at + pair.apart, pair.imaginary);
  }
  if (task.in_fp8.to == nullptr) return;
  gpu::block_barrier();  // the key is complete
  if (gpu::warp_index() == 0)
    device::store_rest(task.in_fp8, task.in_fp8.from.data + row * task.in_fp8.from.stride, cache.in_fp8_row());
}

template <bool kFours>
__global__ void __launch_bounds__(kMaxNormThreads) latents_kernel(LatentsTask task, NormThreads threads) {
  gpu::launch_dependents();
  const bool is_query = gpu::block_index().x != 0;
  const device::NormGains gains = is_query ? device::load_gains<kFours>(task.query, threads.query)
                                           : device::load_gains<kFours>(task.latent, threads.latent);
  gpu::griddepcontrol_wait();
  for (uint64_t row = gpu::block_index().y; row < task.latent.rows; row += gpu::grid_blocks().y) {
    if (row != gpu::block_index().y) gpu::block_barrier();  // the previous row's sums have been read
    if (is_query) {
      device::normalise_row<kFours>(
          task.query, row, threads.query, gpu::shared_memory<float>(), gains,
          [&](uint32_t column, const float4& values) { device::round_normalised(task.query, row, column, values); });
    } else {
      finish_row<kFours>(task, threads.latent, gains, row);
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
  const bool are_fours = has_fours(task.latent) && has_fours(task.query);
  gpu::launch_overlapping(stream, choose_latents_launch(rows, task.latent.cols, task.query.cols),
                          are_fours ? latents_kernel<true> : latents_kernel<false>, task, threads);
}

}  // namespace dspack::kernels::cuda
