// The second of the two kernels of attend.h, which merges the splits: one block per query, one thread per four columns.
//
//   M = max m[s]     w[s] = exp(m[s] - M)     out = sum of w[s] O[s] / sum of w[s] l[s]
//
// Values are added with s ascending. Weights are in the lanes of every warp, whose sums are added lane by lane: only
// the statistics are waited for, while the first values are in flight. Only splits that the row has are read; none of
// them is empty.
#include "kernels/cuda/attention/attend.h"

#include "kernels/cuda/attention/attend.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kSplitsOfLane = kMaxSplits / gpu::kWarpThreads;
constexpr unsigned kAhead = 32;  // splits whose values are in flight at once
static_assert(kMaxSplits % gpu::kWarpThreads == 0 && gpu::kWarpThreads % kAhead == 0);

/// Statistics of splits lane, lane + 32, .. of one query.
struct SplitWeights {
  float weights[kSplitsOfLane];
  float maxima[kSplitsOfLane];
  float sums[kSplitsOfLane];

  __device__ __forceinline__ void load(const float* stats, uint32_t splits) {
#pragma unroll
    for (unsigned i = 0; i < kSplitsOfLane; ++i) {
      const uint32_t split = i * gpu::kWarpThreads + gpu::lane_index();
      const bool is_there = split < splits;
      maxima[i] = is_there ? stats[split * kSplitStats] : device::minus_infinity();
      sums[i] = is_there ? stats[split * kSplitStats + 1] : 0.0F;
    }
  }
  /// Weight of this lane's split among the 32 from split 32 i on.
  [[nodiscard]] __device__ __forceinline__ float weight_at(uint32_t i) const {
    float weight = weights[0];
#pragma unroll
    for (unsigned each = 1; each < kSplitsOfLane; ++each)
      weight = i == each ? weights[each] : weight;
    return weight;
  }
  /// Computes the weights, and returns the sum over all splits of weight times the split's sum.
  __device__ __forceinline__ float weigh() {
    float maximum = device::minus_infinity();
#pragma unroll
    for (const float each : maxima)
      maximum = device::larger(each, maximum);
#pragma unroll
    for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
      maximum = device::larger(gpu::shuffle_xor(maximum, apart), maximum);
    float sum = 0;
#pragma unroll
    for (unsigned i = 0; i < kSplitsOfLane; ++i) {
      weights[i] = device::factor_of(maxima[i], maximum);
      sum = gpu::fma_rn(weights[i], sums[i], sum);
    }
#pragma unroll
    for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
      sum += gpu::shuffle_xor(sum, apart);
    return sum;
  }
};

/// Values of kAhead splits, four columns of each.
struct ValuesAhead {
  float4 fours[kAhead];
  __device__ __forceinline__ void load(const float* values, uint64_t stride, uint32_t first, uint32_t splits) {
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i)
      fours[i] = first + i < splits ? gpu::load_four(values + (first + i) * stride) : make_float4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void add(float weight, unsigned i, float4& total) const {
    total.x = gpu::fma_rn(weight, fours[i].x, total.x);
    total.y = gpu::fma_rn(weight, fours[i].y, total.y);
    total.z = gpu::fma_rn(weight, fours[i].z, total.z);
    total.w = gpu::fma_rn(weight, fours[i].w, total.w);
  }
};

__global__ void __launch_bounds__(kThreads) merge_kernel(device::AttendRun run) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t query = gpu::block_index().x;
  const uint32_t positions = device::positions_of(run, device::row_of(run, query));
  const uint32_t splits = device::splits_of(run, positions);
  const uint64_t first_slot = device::slot_of(run, query, 0);
  const uint64_t stride = run.value_stride;
  SplitWeights lanes;
  lanes.load(run.stats + first_slot * kSplitStats, splits);
  ValuesAhead ahead;
  const float* values = run.values + first_slot * stride + gpu::thread_index() * 4;
  // All threads of a warp stay to the end, since weights are shuffled between lanes.
  ahead.load(values, stride, 0, gpu::thread_index() * 4 < run.latent_dim ? splits : 0);
  const float sum = lanes.weigh();
  for (uint32_t first = 0; first < run.latent_dim; first += kThreads * 4) {
    const uint32_t column = first + gpu::thread_index() * 4;
    const uint32_t read = column < run.latent_dim ? splits : 0;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 1  // few rows have more
    for (uint32_t split = 0; split < splits; split += kAhead) {
      if (first + split > 0) ahead.load(values + first, stride, split, read);
      const float mine = lanes.weight_at(split / gpu::kWarpThreads);
#pragma unroll
      for (unsigned j = 0; j < kAhead; ++j) {
        const float weight = gpu::shuffle(mine, split % gpu::kWarpThreads + j);
        if (split + j < splits) ahead.add(weight, j, total);
      }
    }
    const float results[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      if (column + j < run.latent_dim)
        run.out[uint64_t{query} * run.latent_dim + column + j] = gpu::divide(results[j], sum);
    }
  }
}

}  // namespace

void merge_splits(gpu::Stream& stream, const device::AttendRun& run) {
  gpu::launch_overlapping(stream, {.grid_x = run.queries, .threads = kThreads}, merge_kernel, run);
}

}  // namespace dspack::kernels::cuda
