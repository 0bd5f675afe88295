#include "kernels/cuda/sample.h"

#include <dspack_gpu.h>

#include "kernels/cuda/device/best.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kMostWarps = 32;

/// What this thread sees of a row: single values up to a multiple of 16 bytes, then four at once, then the rest.
__device__ device::Best best_of_thread(const float* values, uint32_t cols) {
  device::Best best;
  const auto misplaced = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values) / sizeof(float) % 4);
  const uint32_t head = (4 - misplaced) % 4 < cols ? (4 - misplaced) % 4 : cols;
  const uint32_t fours = (cols - head) / 4;
  if (gpu::thread_index() < head) best = device::better_of(best, {values[gpu::thread_index()], gpu::thread_index()});
  for (uint32_t four = gpu::thread_index(); four < fours; four += gpu::block_threads()) {
    const uint32_t i = head + four * 4;
    const float4 x = *reinterpret_cast<const float4*>(values + i);
    best = device::better_of(best, {x.x, i});
    best = device::better_of(best, {x.y, i + 1});
    best = device::better_of(best, {x.z, i + 2});
    best = device::better_of(best, {x.w, i + 3});
  }
  const uint32_t tail = head + fours * 4 + gpu::thread_index();
  return tail < cols ? device::better_of(best, {values[tail], tail}) : best;
}

__global__ void __launch_bounds__(kMostWarps* gpu::kWarpThreads) argmax_kernel(ArgmaxTask task) {
  auto* of_warps = gpu::shared_memory<device::Best>();
  const uint64_t row = gpu::block_index().x;
  const device::Best of_warp = device::best_of_warp(best_of_thread(task.x.data + row * task.x.stride, task.cols));
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = of_warp;
  gpu::block_barrier();  // the warps' best are there
  if (gpu::warp_index() != 0) return;
  const bool is_one = gpu::lane_index() < gpu::block_threads() / gpu::kWarpThreads;
  const device::Best best = device::best_of_warp(is_one ? of_warps[gpu::lane_index()] : device::Best{});
  if (gpu::lane_index() == 0) task.ids[row] = best.index == device::kNoIndex ? 0 : best.index;
}

}  // namespace

gpu::LaunchShape choose_argmax_launch(uint32_t rows, uint32_t cols) {
  constexpr unsigned kValuesOfThread = 8;
  const unsigned warps = cols / (kValuesOfThread * gpu::kWarpThreads) + 1;
  const unsigned used = warps < kMostWarps ? warps : kMostWarps;
  return {.grid_x = rows,
          .threads = used * gpu::kWarpThreads,
          .shared_bytes = static_cast<unsigned>(used * sizeof(device::Best))};
}

void run_argmax(gpu::Stream& stream, const ArgmaxTask& task) {
  if (task.rows == 0) return;
  gpu::launch(stream, choose_argmax_launch(task.rows, task.cols), argmax_kernel, task);
}

}  // namespace dspack::kernels::cuda
