// Draws a token from weights: with top-p from the likeliest on, without in the order of index. A block a row.
#include "kernels/cuda/sample_choose.h"

#include <dspack_gpu.h>

#include "kernels/cuda/device/chunks.cuh"
#include "kernels/cuda/device/select.cuh"
#include "kernels/sample_weights.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kMostWarps = 32;

struct ChoiceMemory {
  device::SelectMemory select;
  uint64_t of_warps[kMostWarps];
};

/// visit(order, weight, is_there) for all that weighs `least` or more.
template <class Visit>
__device__ void walk_weights(const device::RowView& row, uint64_t least, Visit visit) {
  device::walk_chunks(
      row, [&](uint32_t chunk) { return row.heaviest[chunk] >= least; },
      [&](uint32_t i, bool is_there) {
        const uint64_t weight = is_there ? row.weights[i] : 0;
        const bool takes_part = weight >= least;
        visit(takes_part ? device::order_of(row.logits[i]) : 0, weight, takes_part);
      });
}

/// What may be drawn, by value: all above `order` and some of its equals, less what min-p leaves out.
struct Nucleus {
  uint32_t order;
  uint64_t least;  // nothing in it is lighter
  uint64_t sum;
};

__device__ __forceinline__ uint64_t weight_at(const SampleTask& task, uint32_t row, uint32_t order) {
  const double highest = static_cast<double>(device::value_of(task.scratch.of_rows[row].highest));
  return weight_of((static_cast<double>(device::value_of(order)) - highest) / task.settings->temperature);
}

__device__ Nucleus find_nucleus(const SampleTask& task, const device::RowView& view, ChoiceMemory& memory,
                                uint64_t sum) {
  const uint64_t last = last_place_of(task.settings->top_p, sum);
  const uint64_t least = least_in_set(last, sum, task.cols);
  const device::Selected at =
      device::select_at(memory.select, last, [&](auto visit) { walk_weights(view, least, visit); });
  const uint64_t weight = weight_at(task, gpu::block_index().x, at.order);
  Nucleus nucleus{.order = at.order, .least = least, .sum = last - at.place};
  uint64_t of_equals = (at.place / weight + 1) * weight;
  const double min_p = task.settings->min_p;
  if (min_p > 0) {
    uint64_t left = 0;
    walk_weights(view, least, [&](uint32_t order, uint64_t each, bool takes_part) {
      if (takes_part && order > at.order && !is_unlikely(each, min_p)) left += each;
    });
    nucleus.sum = device::sum_of_block(left, memory.of_warps);
    if (is_unlikely(weight, min_p)) of_equals = 0;
  }
  nucleus.sum += of_equals;
  return nucleus;
}

/// Stores the index of the value of this order that so many others come before.
__device__ void store_equal_at(const device::RowView& view, uint32_t order, uint64_t rank, ChoiceMemory& memory,
                               uint32_t* id) {
  const auto is_equal = [&](uint32_t i, bool is_there) {
    return is_there && device::order_of(view.logits[i]) == order;
  };
  const auto count_of_chunk = [&](uint32_t chunk, bool is_there) {
    uint64_t count = 0;
    const uint32_t first = chunk - gpu::lane_index();
    unsigned left = gpu::ballot(is_there && view.highest[chunk] >= order);
    for (; left != 0; left &= left - 1) {
      const unsigned lane = gpu::lowest_bit(left);
      for (uint32_t piece = 0; piece < kSampleChunk; piece += gpu::kWarpThreads) {
        const uint32_t i = (first + lane) * kSampleChunk + piece + gpu::lane_index();
        const unsigned equals = gpu::ballot(is_equal(i, i < view.cols));
        if (gpu::lane_index() == lane) count += gpu::count_bits(equals);
      }
    }
    return count;
  };
  gpu::block_barrier();  // sums of warps have been read
  device::store_index_at(view, rank, memory.of_warps, id, count_of_chunk,
                         [&](uint32_t i, bool is_there) { return uint64_t{is_equal(i, is_there) ? 1U : 0U}; });
}

/// From the likeliest on.
__device__ void draw_by_value(const SampleTask& task, const device::RowView& view, ChoiceMemory& memory, uint64_t sum) {
  const uint32_t row = gpu::block_index().x;
  const double min_p = task.settings->min_p;
  const Nucleus nucleus = find_nucleus(task, view, memory, sum);
  const uint64_t place = place_of(task.uniforms[row], nucleus.sum);
  const device::Selected at = device::select_at(memory.select, place, [&](auto visit) {
    walk_weights(view, nucleus.least, [&](uint32_t order, uint64_t weight, bool takes_part) {
      visit(order, weight, takes_part && order >= nucleus.order && !is_unlikely(weight, min_p));
    });
  });
  store_equal_at(view, at.order, at.place / weight_at(task, row, at.order), memory, task.ids + row);
}

/// In the order of index.
__device__ void draw_by_index(const SampleTask& task, const device::RowView& view, ChoiceMemory& memory, uint64_t sum) {
  const uint32_t row = gpu::block_index().x;
  gpu::block_barrier();  // sums of warps have been read
  device::store_index_at(
      view, place_of(task.uniforms[row], sum), memory.of_warps, task.ids + row,
      [&](uint32_t chunk, bool is_there) { return is_there ? view.sums[chunk] : 0; },
      [&](uint32_t i, bool is_there) { return is_there ? view.weights[i] : 0; });
}

__global__ void __launch_bounds__(kMostWarps* gpu::kWarpThreads, 1) choose_kernel(SampleTask task) {
  auto& memory = *gpu::shared_memory<ChoiceMemory>();
  const uint32_t row = gpu::block_index().x;
  if (task.scratch.of_rows[row].is_valid == 0) return;
  const device::RowView view = device::view_of(task, row);
  uint64_t sum = 0;
  for (uint32_t chunk = gpu::thread_index(); chunk < view.chunks; chunk += gpu::block_threads())
    sum += view.sums[chunk];
  sum = device::sum_of_block(sum, memory.of_warps);
  if (task.settings->top_p < 1) return draw_by_value(task, view, memory, sum);
  draw_by_index(task, view, memory, sum);
}

}  // namespace

void launch_choice(gpu::Stream& stream, const SampleTask& task) {
  gpu::LaunchShape shape = choose_row_launch(task.rows, task.cols);
  shape.shared_bytes = sizeof(ChoiceMemory);
  gpu::launch(stream, shape, choose_kernel, task);
}

}  // namespace dspack::kernels::cuda
