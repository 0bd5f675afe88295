// The second kernel of attention: a block for each query, a thread for every 256th column.
//
//   M = max m[s]     w[s] = exp(m[s] - M)     out = sum of w[s] O[s] / sum of w[s] l[s], s ascending
//
// Only splits that the row has are read: none of them is empty.
#include "kernels/cuda/device/attend_runs.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

__global__ void __launch_bounds__(kThreads) merge_kernel(device::AttendRun run) {
  const uint32_t query = gpu::block_index().x;
  const uint32_t positions = device::positions_of(run, query / run.heads);
  const uint32_t splits = (positions - 1) / device::split_length(positions, run.most_splits) + 1;
  const uint64_t first_slot = device::slot_of(run, query, 0);
  auto* maxima = gpu::shared_memory<float>();
  float* sums = maxima + run.slots;
  float* weights = sums + run.slots;
  for (uint32_t split = gpu::thread_index(); split < splits; split += kThreads) {
    maxima[split] = run.stats[(first_slot + split) * kSplitStats];
    sums[split] = run.stats[(first_slot + split) * kSplitStats + 1];
  }
  gpu::block_barrier();  // the statistics are there
  float maximum = device::minus_infinity();
  for (uint32_t split = 0; split < splits; ++split)
    maximum = device::larger(maxima[split], maximum);
  for (uint32_t split = gpu::thread_index(); split < splits; split += kThreads)
    weights[split] = device::factor_of(maxima[split], maximum);
  gpu::block_barrier();  // and the weights
  float sum = 0;
  for (uint32_t split = 0; split < splits; ++split)
    sum = gpu::fused_multiply_add(weights[split], sums[split], sum);
  const uint64_t stride = run.value_stride;
  const float* values = run.values + first_slot * stride;
  for (uint32_t column = gpu::thread_index(); column < run.latent_dim; column += kThreads) {
    float total = 0;
#pragma unroll 8
    for (uint32_t split = 0; split < splits; ++split)
      total = gpu::fused_multiply_add(weights[split], values[split * stride + column], total);
    run.out[uint64_t{query} * run.latent_dim + column] = gpu::divide(total, sum);
  }
}

}  // namespace

void merge_splits(gpu::Stream& stream, const device::AttendRun& run) {
  const gpu::LaunchShape shape{
      .grid_x = run.queries, .threads = kThreads, .shared_bytes = static_cast<unsigned>(3 * run.slots * sizeof(float))};
  gpu::launch(stream, shape, merge_kernel, run);
}

}  // namespace dspack::kernels::cuda
