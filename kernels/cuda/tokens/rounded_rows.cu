// A warp rounds 128 values of a row, four per lane.
#include "kernels/cuda/tokens/rounded_rows.h"

#include <algorithm>

#include "kernels/cuda/tokens/elementwise.cuh"
#include "kernels/cuda/tokens/rounding.cuh"

namespace dspack::kernels::cuda {
namespace {

template <bool kFp8>
__global__ void round_rows_kernel(RoundRowsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t block = gpu::block_index().x * warps + gpu::warp_index();
  if (block >= task.to.columns / kRoundedBlock) return;  // all lanes of a warp
  for (uint64_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y)
    device::round_row_block<kFp8>(task.x.data + row * task.x.stride, task.in, block, task.to, row);
}

/// Computes and rounds a warp's 128 values of silu_times(to, from).
template <bool kFp8>
__global__ void silu_rounded_kernel(RowPairTask task, RoundedRows rounded, float limit) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t block = gpu::block_index().x * warps + gpu::warp_index();
  if (block >= rounded.columns / kRoundedBlock) return;  // all lanes of a warp
  for (uint64_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    const uint32_t first = block * kRoundedBlock + gpu::lane_index() * 4;
    float* to = task.to.data + row * task.to.stride + first;
    const float* from = task.from.data + row * task.from.stride + first;
    float values[4] = {};
    float factors[4] = {};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {  // all reads before the first write
      if (first + i >= task.cols) continue;
      values[i] = to[i];
      factors[i] = from[i];
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      values[i] = device::silu_times(values[i], factors[i], limit);
      if (first + i < task.cols) to[i] = values[i];
    }
    device::store_rounded<kFp8>(values, block, rounded, row);
  }
}

}  // namespace

gpu::LaunchShape choose_round_rows_launch(uint32_t rows, uint32_t in) {
  constexpr unsigned kWarps = 2;  // few, so that one token's blocks spread over the card
  constexpr uint32_t kMaxRows = 65'535;
  return {.grid_x = static_cast<unsigned>(ceil_div(ceil_div(in, kRoundedBlock), kWarps)),
          .grid_y = std::clamp(rows, 1U, kMaxRows),
          .threads = kWarps * gpu::kWarpThreads};
}

void run_round_rows(gpu::Stream& stream, const RoundRowsTask& task) {
  if (task.rows == 0 || task.in == 0) return;
  const gpu::LaunchShape shape = choose_round_rows_launch(task.rows, task.in);
  if (task.to.scales == nullptr) return gpu::launch_overlapping(stream, shape, round_rows_kernel<false>, task);
  gpu::launch_overlapping(stream, shape, round_rows_kernel<true>, task);
}

void run_silu_multiply_rounded(gpu::Stream& stream, const RowPairTask& task, const RoundedRows& rounded, float limit) {
  if (task.rows == 0 || task.cols == 0) return;
  const gpu::LaunchShape shape = choose_round_rows_launch(task.rows, task.cols);
  if (rounded.scales == nullptr)
    return gpu::launch_overlapping(stream, shape, silu_rounded_kernel<false>, task, rounded, limit);
  gpu::launch_overlapping(stream, shape, silu_rounded_kernel<true>, task, rounded, limit);
}

}  // namespace dspack::kernels::cuda
