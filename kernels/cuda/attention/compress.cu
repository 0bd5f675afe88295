#include "kernels/cuda/attention/compress.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/tokens/elementwise.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kMaxThreads = 512;

/// The task at its present position.
__device__ __forceinline__ CompressTask now(CompressTask task) {
  if (task.live != nullptr) task.first_position += *task.live;
  return task;
}

/// The row of the state that keeps a position: its values, then its gates with ape.
__device__ __forceinline__ float* kept_row(const CompressTask& task, uint32_t position) {
  return task.state + uint64_t{position % task.state_rows} * 2 * task.width;
}

/// A channel of a position that is in the rows: its gate, with ape.
__device__ __forceinline__ float gate_of(const CompressTask& task, uint32_t position, uint32_t channel) {
  const uint64_t row = position - task.first_position;
  return task.gates.data[row * task.gates.stride + channel] +
         task.ape[uint64_t{position % task.every} * task.width + channel];
}

/// Calls visit(value, gate) for each slot of a channel of entry `entry`, in order.
template <class Visit>
__device__ __forceinline__ void for_each_slot(const CompressTask& task, uint32_t entry, uint32_t channel, Visit visit) {
  const uint32_t first = entry * task.every;
  const uint32_t begin = task.overlaps && entry > 0 ? first - task.every : first;
  for (uint32_t position = begin; position < first + task.every; ++position) {
    const uint32_t at = task.overlaps && position >= first ? task.dim + channel : channel;
    if (position < task.first_position) {
      const float* kept = kept_row(task, position) + at;
      visit(kept[0], kept[task.width]);
    } else {
      const uint64_t row = position - task.first_position;
      visit(task.values.data[row * task.values.stride + at], gate_of(task, position, at));
    }
  }
}

__device__ __forceinline__ float weighted(const CompressTask& task, uint32_t entry, uint32_t channel) {
  float largest = 0;
  bool is_first = true;
  for_each_slot(task, entry, channel, [&](float /*value*/, float gate) {
    largest = is_first || gate > largest ? gate : largest;
    is_first = false;
  });
  double sum = 0, total = 0;  // up to 256 slots
  for_each_slot(task, entry, channel, [&](float value, float gate) {
    const auto weight = static_cast<double>(gpu::exponential(gate - largest));
    sum += weight;
    total += weight * static_cast<double>(value);
  });
  return static_cast<float>(total / sum);
}

/// A value per thread, added in an order that depends on the number of threads alone; in every thread.
__device__ __forceinline__ double sum_of_block(double value, double* of_warps) {
#pragma unroll
  for (unsigned mask = gpu::kWarpThreads / 2; mask > 0; mask /= 2)
    value += gpu::shuffle_xor(value, mask);
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = value;
  gpu::block_barrier();  // the warps' sums are stored
  double sum = 0;
  for (unsigned warp = 0; warp < gpu::block_threads() / gpu::kWarpThreads; ++warp)
    sum += of_warps[warp];
  return sum;
}

__global__ void __launch_bounds__(kMaxThreads) compress_kernel(CompressTask given) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const CompressTask task = now(given);
  const uint32_t entry = task.first_position / task.every + gpu::block_index().x;
  if (entry >= (task.first_position + task.rows) / task.every) return;
  const unsigned thread = gpu::thread_index(), threads = gpu::block_threads();
  auto* of_warps = gpu::shared_memory<double>();
  auto* values = reinterpret_cast<float*>(of_warps + kMaxThreads / gpu::kWarpThreads);  // [dim]
  double squares = 0;
  for (uint32_t channel = thread; channel < task.dim; channel += threads) {
    const float value = weighted(task, entry, channel);
    values[channel] = value;
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double mean = sum_of_block(squares, of_warps) / task.dim;
  const double inverse = 1.0 / gpu::square_root(mean + static_cast<double>(task.epsilon));
  for (uint32_t channel = thread; channel < task.dim; channel += threads)
    values[channel] =
        static_cast<float>(static_cast<double>(values[channel]) * inverse * static_cast<double>(task.gain[channel]));
  gpu::block_barrier();  // the normalised values are there
  const uint32_t unrotated = task.dim - task.rope_dim;
  const float* turn = task.cos_sin + uint64_t{entry} * task.every * task.rope_dim;
  for (uint32_t i = thread; i < task.rope_dim / 2; i += threads) {
    float* at = values + unrotated + 2 * i;
    device::RotatedPair{
        .at = at, .apart = 1, .real = at[0], .imaginary = at[1], .cosine = turn[2 * i], .sine = turn[2 * i + 1]}
        .turn();
  }
  gpu::block_barrier();  // the rotated values are there
  const StoreRowsTask stored{.to = task.entries, .dtype = task.dtype, .from = {}};
  for (uint32_t channel = thread; channel < task.dim; channel += threads)
    device::store_as(stored, uint64_t{entry} * task.dim + channel, values[channel]);
}

/// Keeps the rows from `first_row` on.
__global__ void keep_rows_kernel(CompressTask given, uint32_t first_row) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const CompressTask task = now(given);
  const uint64_t col = uint64_t{gpu::block_index().x} * gpu::block_threads() + gpu::thread_index();
  if (col >= task.width) return;
  for (uint64_t row = first_row + gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    const auto position = static_cast<uint32_t>(task.first_position + row);
    float* kept = kept_row(task, position) + col;
    kept[0] = task.values.data[row * task.values.stride + col];
    kept[task.width] = gate_of(task, position, static_cast<uint32_t>(col));
  }
}

}  // namespace

void run_compress(gpu::Stream& stream, const CompressTask& task) {
  // At a live position the rows may complete any number of entries up to this.
  const uint32_t entries = task.live != nullptr
                               ? static_cast<uint32_t>(ceil_div(task.rows, task.every))
                               : (task.first_position + task.rows) / task.every - task.first_position / task.every;
  if (entries > 0) {
    const uint64_t threads = std::min<uint64_t>(kMaxThreads, round_up(task.dim, gpu::kWarpThreads));
    const uint64_t shared = kMaxThreads / gpu::kWarpThreads * sizeof(double) + task.dim * sizeof(float);
    const gpu::LaunchShape shape{
        .grid_x = entries, .threads = static_cast<unsigned>(threads), .shared_bytes = static_cast<unsigned>(shared)};
    gpu::launch_overlapping(stream, shape, compress_kernel, task);
  }
  const uint32_t kept = std::min(task.rows, task.state_rows);
  gpu::launch_overlapping(stream, choose_rows_launch(kept, task.width), keep_rows_kernel, task, task.rows - kept);
}

}  // namespace dspack::kernels::cuda
