#include "kernels/cuda/attention/window_attend.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/check.h"
#include "format/base/size.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarps = 8;       // heads per block
constexpr unsigned kAtOnce = 4;      // keys
constexpr uint32_t kLeastKeys = 64;  // in a part, but for the last

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

/// Sums over some keys with weights exp(score - largest): of weights, and of keys (a lane's values, or one).
template <unsigned kOfLane>
struct Weighed {
  float largest;  // score
  float sum;
  float total[kOfLane];
};

/// Adds the sums over further keys.
template <unsigned kOfLane>
__device__ __forceinline__ void add(Weighed<kOfLane>& all, const Weighed<kOfLane>& part) {
  const float now = part.largest > all.largest ? part.largest : all.largest;
  const float before = gpu::exponential(all.largest - now), added = gpu::exponential(part.largest - now);
  all.largest = now;
  all.sum = gpu::fma_rn(part.sum, added, all.sum * before);
#pragma unroll
  for (unsigned e = 0; e < kOfLane; ++e)
    all.total[e] = gpu::fma_rn(part.total[e], added, all.total[e] * before);
}

/// Keys in a part of a row that sees `count`.
__device__ __forceinline__ uint32_t keys_of_part(uint32_t count) {
  const uint32_t equal = ((count + kWindowParts - 1) / kWindowParts + kAtOnce - 1) / kAtOnce * kAtOnce;
  return equal > kLeastKeys ? equal : kLeastKeys;
}

/// The keys from `begin` to `end`, at least one. For a whole warp.
template <Dtype kDtype, unsigned kOfLane>
__device__ __forceinline__ Weighed<kOfLane> weigh(const WindowAttendTask& task, const Seen& seen,
                                                  const float (&query)[kOfLane], uint32_t begin, uint32_t end) {
  Weighed<kOfLane> part = {};
  part.largest = gpu::bits_to_float(0xff800000U);  // minus infinity
  for (; begin < end; begin += kAtOnce) {
    float keys[kAtOnce][kOfLane], scores[kAtOnce];
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; ++k)
      seen.load<kDtype>(begin + k < end ? begin + k : begin, task.dim, keys[k]);
    float now = part.largest;
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; ++k) {
      float product = 0;
#pragma unroll
      for (unsigned e = 0; e < kOfLane; ++e)
        product = gpu::fma_rn(query[e], keys[k][e], product);
      scores[k] = gpu::sum_of_warp(product) * task.scale;
      if (begin + k < end && scores[k] > now) now = scores[k];
    }
    const float factor = gpu::exponential(part.largest - now);
    part.largest = now;
    part.sum *= factor;
#pragma unroll
    for (unsigned e = 0; e < kOfLane; ++e)
      part.total[e] *= factor;
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const float weight = begin + k < end ? gpu::exponential(scores[k] - now) : 0.0F;
      part.sum += weight;
#pragma unroll
      for (unsigned e = 0; e < kOfLane; ++e)
        part.total[e] = gpu::fma_rn(weight, keys[k][e], part.total[e]);
    }
  }
  return part;
}

/// Block: heads of one row, and a part if there is memory for sums of parts, else all of them.
template <Dtype kDtype, unsigned kOfLane>
__global__ void __launch_bounds__(kWarps* gpu::kWarpThreads) window_attend_kernel(WindowAttendTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t head = gpu::block_index().x * kWarps + gpu::warp_index();
  if (head >= task.heads) return;
  for (uint64_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    const Seen seen(task, row);
    const uint32_t keys = keys_of_part(seen.count);
    const uint32_t first_part = gpu::block_index().z;
    if (first_part * keys >= seen.count) continue;
    const uint64_t place = row * task.heads + head;
    float query[kOfLane];
#pragma unroll
    for (unsigned e = 0; e < kOfLane; ++e) {
      const uint32_t i = gpu::lane_index() + e * gpu::kWarpThreads;
      query[e] = i < task.dim ? task.queries[place * task.dim + i] : 0.0F;
    }
    const auto weigh_part = [&](uint32_t begin) {
      const uint32_t end = begin + keys < seen.count ? begin + keys : seen.count;
      return weigh<kDtype, kOfLane>(task, seen, query, begin, end);
    };
    Weighed<kOfLane> all = {};
    if (task.partial != nullptr) {
      all = weigh_part(first_part * keys);
    } else {
      all.largest = task.sinks[head];
      all.sum = 1;  // the sink's share
      for (uint32_t begin = 0; begin < seen.count; begin += keys)
        add(all, weigh_part(begin));
    }
    float* to = task.partial != nullptr ? task.partial + (place * kWindowParts + first_part) * (task.dim + 2)
                                        : task.out + place * task.dim;
#pragma unroll
    for (unsigned e = 0; e < kOfLane; ++e) {
      const uint32_t i = gpu::lane_index() + e * gpu::kWarpThreads;
      if (i < task.dim) to[i] = task.partial != nullptr ? all.total[e] : gpu::divide(all.total[e], all.sum);
    }
    if (task.partial == nullptr || gpu::lane_index() != 0) continue;
    to[task.dim] = all.largest;
    to[task.dim + 1] = all.sum;
  }
}

/// Block: a head of one row; a thread per value.
__global__ void __launch_bounds__(kMaxWindowDim) add_parts_kernel(WindowAttendTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t head = gpu::block_index().x, i = gpu::thread_index();
  const uint64_t row = gpu::block_index().y;
  if (i >= task.dim) return;
  const uint32_t count = Seen(task, row).count;
  const uint32_t keys = keys_of_part(count);
  const uint64_t place = row * task.heads + head;
  Weighed<1> all{.largest = task.sinks[head], .sum = 1, .total = {0}};
  for (uint32_t part = 0; part * keys < count; ++part) {
    const float* from = task.partial + (place * kWindowParts + part) * (task.dim + 2);
    add(all, Weighed<1>{.largest = from[task.dim], .sum = from[task.dim + 1], .total = {from[i]}});
  }
  task.out[place * task.dim + i] = gpu::divide(all.total[0], all.sum);
}

template <Dtype kDtype>
void run_for(gpu::Stream& stream, const WindowAttendTask& task) {
  constexpr unsigned kFew = 2, kMost = kMaxWindowDim / gpu::kWarpThreads;
  constexpr uint32_t kMaxRowBlocks = 65'535;
  const uint64_t parts =
      task.partial == nullptr ? 1 : std::min<uint64_t>(kWindowParts, ceil_div(task.most_keys, kLeastKeys));
  const gpu::LaunchShape shape{.grid_x = (task.heads + kWarps - 1) / kWarps,
                               .grid_y = std::min(task.rows, kMaxRowBlocks),
                               .grid_z = static_cast<unsigned>(parts),
                               .threads = kWarps * gpu::kWarpThreads};
  gpu::launch_overlapping(
      stream, shape,
      task.dim <= kFew * gpu::kWarpThreads ? window_attend_kernel<kDtype, kFew> : window_attend_kernel<kDtype, kMost>,
      task);
  if (task.partial == nullptr) return;
  const auto threads = static_cast<unsigned>(round_up(task.dim, gpu::kWarpThreads));
  gpu::launch_overlapping(stream, {.grid_x = task.heads, .grid_y = task.rows, .threads = threads}, add_parts_kernel,
                          task);
}

}  // namespace

void run_window_attend(gpu::Stream& stream, const WindowAttendTask& task) {
  DSPACK_CHECK(task.dim <= kMaxWindowDim, "keys of more values than a warp holds");
  DSPACK_CHECK(task.partial == nullptr || task.rows <= kMaxSplitRows, "more rows than have parts");
  if (task.dtype == Dtype::bf16) return run_for<Dtype::bf16>(stream, task);
  if (task.dtype == Dtype::f16) return run_for<Dtype::f16>(stream, task);
  DSPACK_CHECK(task.dtype == Dtype::f32, "keys of this type");
  run_for<Dtype::f32>(stream, task);
}

}  // namespace dspack::kernels::cuda
