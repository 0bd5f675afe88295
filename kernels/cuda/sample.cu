#include "kernels/cuda/sample.h"

#include <dspack_gpu.h>

#include "kernels/cuda/device/order.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kMostWarps = 32;

struct Highest {
  uint32_t order = 0;  // below that of every value
  uint32_t index = 0;
};

__device__ __forceinline__ Highest higher_of(const Highest& a, const Highest& b) {
  if (a.order != b.order) return a.order > b.order ? a : b;
  return a.index < b.index ? a : b;
}

__device__ __forceinline__ Highest highest_of_warp(Highest highest) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const Highest other{gpu::shuffle_xor(highest.order, apart), gpu::shuffle_xor(highest.index, apart)};
    highest = higher_of(highest, other);
  }
  return highest;
}

/// What this thread sees of a row: single values up to a multiple of 16 bytes, then four at once, then the rest.
__device__ Highest highest_of_thread(const float* values, uint32_t cols) {
  Highest highest;
  const auto see = [&](float value, uint32_t index) { highest = higher_of(highest, {device::order_of(value), index}); };
  const auto misplaced = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values) / sizeof(float) % 4);
  const uint32_t head = (4 - misplaced) % 4 < cols ? (4 - misplaced) % 4 : cols;
  const uint32_t fours = (cols - head) / 4;
  if (gpu::thread_index() < head) see(values[gpu::thread_index()], gpu::thread_index());
  for (uint32_t four = gpu::thread_index(); four < fours; four += gpu::block_threads()) {
    const uint32_t i = head + four * 4;
    const float4 x = *reinterpret_cast<const float4*>(values + i);
    see(x.x, i);
    see(x.y, i + 1);
    see(x.z, i + 2);
    see(x.w, i + 3);
  }
  const uint32_t tail = head + fours * 4 + gpu::thread_index();
  if (tail < cols) see(values[tail], tail);
  return highest;
}

__global__ void __launch_bounds__(kMostWarps* gpu::kWarpThreads) argmax_kernel(ArgmaxTask task) {
  auto* of_warps = gpu::shared_memory<Highest>();
  const uint64_t row = gpu::block_index().x;
  const Highest of_warp = highest_of_warp(highest_of_thread(task.x.data + row * task.x.stride, task.cols));
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = of_warp;
  gpu::block_barrier();  // the warps' highest are there
  if (gpu::warp_index() != 0) return;
  const bool is_one = gpu::lane_index() < gpu::block_threads() / gpu::kWarpThreads;
  const Highest highest = highest_of_warp(is_one ? of_warps[gpu::lane_index()] : Highest{});
  if (gpu::lane_index() == 0) task.ids[row] = highest.index;
}

}  // namespace

gpu::LaunchShape choose_argmax_launch(uint32_t rows, uint32_t cols) {
  constexpr unsigned kValuesOfThread = 8;
  const unsigned warps = cols / (kValuesOfThread * gpu::kWarpThreads) + 1;
  const unsigned used = warps < kMostWarps ? warps : kMostWarps;
  return {.grid_x = rows,
          .threads = used * gpu::kWarpThreads,
          .shared_bytes = static_cast<unsigned>(used * sizeof(Highest))};
}

void run_argmax(gpu::Stream& stream, const ArgmaxTask& task) {
  if (task.rows == 0) return;
  gpu::launch(stream, choose_argmax_launch(task.rows, task.cols), argmax_kernel, task);
}

}  // namespace dspack::kernels::cuda
