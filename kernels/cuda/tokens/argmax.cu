#include "kernels/cuda/tokens/argmax.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/order.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarps = 8;

__device__ __forceinline__ Highest higher_of(const Highest& a, const Highest& b) {
  if (a.order != b.order) return a.order > b.order ? a : b;
  return a.index < b.index ? a : b;
}

/// The highest over all lanes, in every lane.
__device__ __forceinline__ Highest highest_of_warp(const Highest& mine) {
  const uint32_t order = gpu::largest_of_warp(mine.order);
  return {order, gpu::smallest_of_warp(mine.order == order ? mine.index : UINT32_MAX)};
}

/// The highest that this thread reads of `count` values, the first of which has index `first`: single values up to a
/// 16-byte boundary, then four at once, then the rest.
__device__ __forceinline__ Highest highest_of_thread(const float* values, uint32_t first, uint32_t count) {
  Highest highest;
  const auto see = [&](float value, uint32_t index) {
    highest = higher_of(highest, {device::order_of(value), first + index});
  };
  const auto see_four = [&](const float4& x, uint32_t index) {
    see(x.x, index);
    see(x.y, index + 1);
    see(x.z, index + 2);
    see(x.w, index + 3);
  };
  const auto misplaced = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values) / sizeof(float) % 4);
  const uint32_t head = (4 - misplaced) % 4 < count ? (4 - misplaced) % 4 : count;
  const uint32_t fours = (count - head) / 4;
  const auto load = [&](uint32_t four) { return gpu::load_four(values + head + four * 4); };
  const unsigned threads = gpu::block_threads();
  for (uint32_t four = gpu::thread_index(); four < fours; four += 2 * threads) {
    const bool are_two = four + threads < fours;
    const uint32_t other = are_two ? four + threads : four;
    const float4 x = load(four);
    const float4 y = load(other);
    see_four(x, head + four * 4);
    see_four(y, head + other * 4);
  }
  if (gpu::thread_index() < head) see(values[gpu::thread_index()], gpu::thread_index());
  const uint32_t tail = head + fours * 4 + gpu::thread_index();
  if (tail < count) see(values[tail], tail);
  return highest;
}

__device__ __forceinline__ uint32_t token_of(const Highest& highest) {
  const bool is_finite = highest.order > device::kOrderOfMinusInfinity && highest.order < device::kOrderOfInfinity;
  return is_finite ? highest.index : kNoToken;
}

/// Compares the parts of all rows. Runs on one warp of the last block.
__device__ __forceinline__ void compare_parts(const ArgmaxTask& task) {
  const uint32_t parts = gpu::grid_blocks().y;
  for (uint32_t row = 0; row < task.rows; ++row) {
    Highest highest;
    for (uint32_t part = gpu::lane_index(); part < parts; part += gpu::kWarpThreads)
      highest = higher_of(highest, task.of_parts[uint64_t{row} * parts + part]);
    highest = highest_of_warp(highest);
    if (gpu::lane_index() == 0) task.ids[row] = token_of(highest);
  }
  if (gpu::lane_index() == 0) *task.counter = 0;
}

/// `span`: values per part.
__global__ void __launch_bounds__(kWarps* gpu::kWarpThreads) argmax_kernel(ArgmaxTask task, uint32_t span) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  auto* of_warps = gpu::shared_memory<Highest>();
  const uint32_t row = gpu::block_index().x;
  const uint32_t parts = gpu::grid_blocks().y;
  const uint32_t first = gpu::block_index().y * span;
  const uint32_t count = task.cols - first < span ? task.cols - first : span;
  const float* values = task.x.data + uint64_t{row} * task.x.stride + first;
  const Highest of_warp = highest_of_warp(highest_of_thread(values, first, count));
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = of_warp;
  gpu::block_barrier();  // the warps' results are stored
  if (gpu::warp_index() != 0) return;
  const Highest highest = highest_of_warp(gpu::lane_index() < kWarps ? of_warps[gpu::lane_index()] : Highest{});
  if (parts == 1) {
    if (gpu::lane_index() == 0) task.ids[row] = token_of(highest);
    return;
  }
  uint32_t before = 0;
  if (gpu::lane_index() == 0) {
    task.of_parts[uint64_t{row} * parts + gpu::block_index().y] = highest;
    before = gpu::count_up(task.counter);
  }
  const bool is_last = gpu::shuffle(before, 0) == parts * gpu::grid_blocks().x - 1;
  gpu::warp_barrier();  // other blocks' parts are visible
  if (is_last) compare_parts(task);
}

/// Two 16-byte reads per thread; longer parts for many rows, since one warp compares the parts of all rows.
constexpr uint32_t kSpan = 2 * 4 * kWarps * gpu::kWarpThreads;
constexpr uint32_t kEnoughBlocks = 512;

uint32_t span_of(uint32_t rows, uint32_t cols) {
  const uint64_t most_parts = std::max(kEnoughBlocks / rows, 1U);
  const uint64_t parts = std::min(ceil_div(cols, kSpan), most_parts);
  return static_cast<uint32_t>(round_up(ceil_div(cols, parts), 4));
}

}  // namespace

gpu::LaunchShape choose_argmax_launch(uint32_t rows, uint32_t cols) {
  return {.grid_x = rows,
          .grid_y = static_cast<unsigned>(ceil_div(cols, span_of(rows, cols))),
          .threads = kWarps * gpu::kWarpThreads,
          .shared_bytes = kWarps * sizeof(Highest)};
}

void run_argmax(gpu::Stream& stream, const ArgmaxTask& task) {
  if (task.rows == 0) return;
  gpu::launch_overlapping(stream, choose_argmax_launch(task.rows, task.cols), argmax_kernel, task,
                          span_of(task.rows, task.cols));
}

}  // namespace dspack::kernels::cuda
