#include "kernels/cuda/attention/window_attend.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/check.h"
#include "format/base/size.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarps = 8;   // heads per block
constexpr unsigned kAtOnce = 4;  // keys

template <Dtype kDtype>
__device__ __forceinline__ float value_at(const void* values, uint64_t index) {
  if constexpr (kDtype == Dtype::f32) return static_cast<const float*>(values)[index];
  const uint32_t bits = static_cast<const uint16_t*>(values)[index];
  if constexpr (kDtype == Dtype::bf16) return gpu::bits_to_float(bits << 16U);
  return gpu::halves_to_floats(bits).x;
}

/// The keys that one row sees: those of its window, oldest first, then entries.
struct Seen {
  const void* ring;
  const void* entries;
  const uint32_t* chosen;  // null: entries in their order
  uint32_t ring_rows, first_slot, positions, count;

  __device__ __forceinline__ Seen(const WindowAttendTask& task, uint64_t row)
      : ring(task.ring), entries(task.entries), chosen(nullptr), ring_rows(task.ring_rows) {
    const uint32_t live = task.live == nullptr ? 0 : *task.live;
    const uint32_t end = task.first_position + live + static_cast<uint32_t>(row) + 1;
    positions = end < task.window ? end : task.window;
    first_slot = (end - positions) % ring_rows;
    count = positions;
    if (entries == nullptr) return;
    if (task.chosen != nullptr) chosen = task.chosen + row * task.most;
    count += chosen != nullptr ? task.counts[row] : end / task.every;
  }
  /// Values of key `index` that a lane has: l, l + 32, .. below dim; zeros beyond.
  template <Dtype kDtype, unsigned kOfLane>
  __device__ __forceinline__ void load(uint32_t index, uint32_t dim, float (&values)[kOfLane]) const {
    const bool is_position = index < positions;
    uint32_t at = index - positions;
    if (is_position) {
      at = first_slot + index;
      if (at >= ring_rows) at -= ring_rows;
    } else if (chosen != nullptr) {
      at = chosen[at];
    }
    const void* rows = is_position ? ring : entries;
#pragma unroll
    for (unsigned e = 0; e < kOfLane; ++e) {
      const uint32_t i = gpu::lane_index() + e * gpu::kWarpThreads;
      values[e] = i < dim ? value_at<kDtype>(rows, uint64_t{at} * dim + i) : 0.0F;
    }
  }
};

template <Dtype kDtype, unsigned kOfLane>
__global__ void __launch_bounds__(kWarps* gpu::kWarpThreads) window_attend_kernel(WindowAttendTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t head = gpu::block_index().x * kWarps + gpu::warp_index();
  if (head >= task.heads) return;
  for (uint64_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    const uint64_t first = (row * task.heads + head) * task.dim;
    float query[kOfLane], total[kOfLane] = {};
#pragma unroll
    for (unsigned e = 0; e < kOfLane; ++e) {
      const uint32_t i = gpu::lane_index() + e * gpu::kWarpThreads;
      query[e] = i < task.dim ? task.queries[first + i] : 0.0F;
    }
    const Seen seen(task, row);
    float largest = task.sinks[head], sum = 1;  // the sink's share
    for (uint32_t begin = 0; begin < seen.count; begin += kAtOnce) {
      float keys[kAtOnce][kOfLane], scores[kAtOnce];
#pragma unroll
      for (unsigned k = 0; k < kAtOnce; ++k)
        seen.load<kDtype>(begin + k < seen.count ? begin + k : begin, task.dim, keys[k]);
      float now = largest;
#pragma unroll
      for (unsigned k = 0; k < kAtOnce; ++k) {
        float product = 0;
#pragma unroll
        for (unsigned e = 0; e < kOfLane; ++e)
          product = gpu::fma_rn(query[e], keys[k][e], product);
        scores[k] = gpu::sum_of_warp(product) * task.scale;
        if (begin + k < seen.count && scores[k] > now) now = scores[k];
      }
      const float factor = gpu::exponential(largest - now);
      largest = now;
      sum *= factor;
#pragma unroll
      for (unsigned e = 0; e < kOfLane; ++e)
        total[e] *= factor;
#pragma unroll
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const float weight = begin + k < seen.count ? gpu::exponential(scores[k] - now) : 0.0F;
        sum += weight;
#pragma unroll
        for (unsigned e = 0; e < kOfLane; ++e)
          total[e] = gpu::fma_rn(weight, keys[k][e], total[e]);
      }
    }
#pragma unroll
    for (unsigned e = 0; e < kOfLane; ++e) {
      const uint32_t i = gpu::lane_index() + e * gpu::kWarpThreads;
      if (i < task.dim) task.out[first + i] = gpu::divide(total[e], sum);
    }
  }
}

template <Dtype kDtype>
void run_for(gpu::Stream& stream, const WindowAttendTask& task) {
  constexpr unsigned kFew = 2, kMost = kMaxWindowDim / gpu::kWarpThreads;
  gpu::launch_overlapping(
      stream, choose_window_attend_launch(task.rows, task.heads),
      task.dim <= kFew * gpu::kWarpThreads ? window_attend_kernel<kDtype, kFew> : window_attend_kernel<kDtype, kMost>,
      task);
}

}  // namespace

gpu::LaunchShape choose_window_attend_launch(uint32_t rows, uint32_t heads) {
  constexpr uint32_t kMaxRowBlocks = 65'535;
  return {.grid_x = (heads + kWarps - 1) / kWarps,
          .grid_y = std::min(rows, kMaxRowBlocks),
          .threads = kWarps * gpu::kWarpThreads};
}

void run_window_attend(gpu::Stream& stream, const WindowAttendTask& task) {
  DSPACK_CHECK(task.dim <= kMaxWindowDim, "keys of more values than a warp holds");
  if (task.dtype == Dtype::bf16) return run_for<Dtype::bf16>(stream, task);
  if (task.dtype == Dtype::f16) return run_for<Dtype::f16>(stream, task);
  DSPACK_CHECK(task.dtype == Dtype::f32, "keys of this type");
  run_for<Dtype::f32>(stream, task);
}

}  // namespace dspack::kernels::cuda
