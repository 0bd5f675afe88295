// Sampling takes four. What a token can be drawn from: the highest logit of every chunk and row, the lowest that top-k
// leaves, the weights. Then a token is drawn from the weights, with top-p from the likeliest on, without in the order
// of index: a block a row.
#include "kernels/cuda/sample.h"

#include <dspack_gpu.h>

#include "kernels/cuda/device/sample.cuh"
#include "kernels/sample_weights.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kMostWarps = 32;

constexpr unsigned kChunksOfBlock = 8;

__device__ __forceinline__ uint32_t chunk_of_warp() {
  return gpu::block_index().x * kChunksOfBlock + gpu::warp_index();
}

__global__ void __launch_bounds__(kChunksOfBlock* gpu::kWarpThreads) survey_kernel(SampleTask task) {
  const uint64_t row = gpu::block_index().y;
  const uint32_t chunks = task.scratch.chunks;
  const uint32_t chunk = chunk_of_warp();
  if (chunk >= chunks) return;
  const float* logits = task.logits.data + row * task.logits.stride;
  uint32_t highest = 0;
#pragma unroll
  for (uint32_t piece = 0; piece < kSampleChunk; piece += gpu::kWarpThreads) {
    const uint32_t i = chunk * kSampleChunk + piece + gpu::lane_index();
    const uint32_t order = i < task.cols ? device::order_of(logits[i]) : 0;
    highest = order > highest ? order : highest;
  }
  highest = device::highest_of_warp(highest);
  if (gpu::lane_index() == 0) task.scratch.highest[row * chunks + chunk] = highest;
}

/// In every thread.
__device__ uint32_t highest_of_row(const device::RowView& row, uint32_t* of_warps) {
  uint32_t highest = 0;
  for (uint32_t chunk = gpu::thread_index(); chunk < row.chunks; chunk += gpu::block_threads())
    highest = row.highest[chunk] > highest ? row.highest[chunk] : highest;
  highest = device::highest_of_warp(highest);
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = highest;
  gpu::block_barrier();  // the warps' highest are there
  for (unsigned warp = 0; warp < gpu::block_threads() / gpu::kWarpThreads; ++warp)
    highest = of_warps[warp] > highest ? of_warps[warp] : highest;
  return highest;
}

/// The k-th highest of the row, k below their number. So many of the chunks' highest bound it from below.
__device__ uint32_t kth_highest(const device::RowView& row, device::SelectMemory& memory, uint32_t k) {
  uint32_t bound = 0;
  if (k <= row.chunks) {
    bound = device::select_at(memory, k - 1, [&](auto visit) {
              for (uint32_t first = gpu::warp_index() * gpu::kWarpThreads; first < row.chunks;
                   first += gpu::block_threads()) {
                const uint32_t chunk = first + gpu::lane_index();
                visit(chunk < row.chunks ? row.highest[chunk] : 0, 1, chunk < row.chunks);
              }
            }).order;
  }
  return device::select_at(memory, k - 1,
                           [&](auto visit) {
                             device::walk_chunks(
                                 row, [&](uint32_t chunk) { return row.highest[chunk] >= bound; },
                                 [&](uint32_t i, bool is_there) {
                                   const uint32_t order = is_there ? device::order_of(row.logits[i]) : 0;
                                   visit(order, 1, is_there && order >= bound);
                                 });
                           })
      .order;
}

struct BoundMemory {
  device::SelectMemory select;
  uint32_t of_warps[kMostWarps];
};

__global__ void __launch_bounds__(kMostWarps* gpu::kWarpThreads, 1) bound_kernel(SampleTask task) {
  auto& memory = *gpu::shared_memory<BoundMemory>();
  const uint32_t row = gpu::block_index().x;
  const device::RowView view = device::view_of(task, row);
  SampleRow known{.highest = highest_of_row(view, memory.of_warps)};
  known.is_valid = known.highest < device::kOrderOfInfinity && known.highest > device::kOrderOfMinusInfinity &&
                   task.settings->temperature > 0;
  const uint32_t top_k = task.settings->top_k;
  if (known.is_valid != 0 && top_k > 0 && top_k < task.cols) known.lowest = kth_highest(view, memory.select, top_k);
  if (gpu::thread_index() != 0) return;
  task.scratch.of_rows[row] = known;
  task.ids[row] = kNoToken;  // until one is chosen
}

__global__ void __launch_bounds__(kChunksOfBlock* gpu::kWarpThreads) weigh_kernel(SampleTask task) {
  const uint32_t row = gpu::block_index().y;
  const uint32_t chunks = task.scratch.chunks;
  const uint32_t chunk = chunk_of_warp();
  const SampleRow known = task.scratch.of_rows[row];
  if (chunk >= chunks || known.is_valid == 0) return;
  const SampleSettings settings = *task.settings;
  const double highest = static_cast<double>(device::value_of(known.highest));
  const double min_p = settings.top_p < 1 ? 0 : settings.min_p;  // top-p comes first
  const float* logits = task.logits.data + uint64_t{row} * task.logits.stride;
  const uint64_t at = uint64_t{row} * chunks + chunk;
  uint64_t sum = 0;
  uint64_t heaviest = 0;
  for (uint32_t place = gpu::lane_index(); place < kSampleChunk; place += gpu::kWarpThreads) {
    const uint32_t i = chunk * kSampleChunk + place;
    uint64_t weight = 0;
    if (i < task.cols && device::order_of(logits[i]) >= known.lowest)
      weight = weight_of((static_cast<double>(logits[i]) - highest) / settings.temperature);
    if (is_unlikely(weight, min_p)) weight = 0;
    task.scratch.weights[at * kSampleChunk + place] = weight;
    sum += weight;
    heaviest = weight > heaviest ? weight : heaviest;
  }
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const uint64_t other = device::shuffle_wide(heaviest, gpu::lane_index() ^ apart);
    heaviest = other > heaviest ? other : heaviest;
  }
  sum = device::sum_of_warp(sum);
  if (gpu::lane_index() != 0) return;
  task.scratch.sums[at] = sum;
  task.scratch.heaviest[at] = heaviest;
}

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

void launch_choice(gpu::Stream& stream, const SampleTask& task) {
  gpu::LaunchShape shape = choose_row_launch(task.rows, task.cols);
  shape.shared_bytes = sizeof(ChoiceMemory);
  gpu::launch(stream, shape, choose_kernel, task);
}

}  // namespace

gpu::LaunchShape choose_chunks_launch(uint32_t rows, uint32_t cols) {
  return {.grid_x = (sample_chunks(cols) + kChunksOfBlock - 1) / kChunksOfBlock,
          .grid_y = rows,
          .threads = kChunksOfBlock * gpu::kWarpThreads};
}

gpu::LaunchShape choose_row_launch(uint32_t rows, uint32_t cols) {
  constexpr unsigned kChunksOfWarp = 4;
  const unsigned warps = (sample_chunks(cols) + kChunksOfWarp - 1) / kChunksOfWarp;
  return {.grid_x = rows, .threads = (warps < kMostWarps ? warps : kMostWarps) * gpu::kWarpThreads};
}

uint64_t sample_scratch_bytes(uint32_t rows, uint32_t cols) {
  constexpr uint64_t kOfChunk = kSampleChunk * sizeof(uint64_t) + 2 * sizeof(uint64_t) + sizeof(uint32_t);
  return rows * (uint64_t{sample_chunks(cols)} * kOfChunk + sizeof(SampleRow));
}

SampleScratch lay_out_sample(std::byte* memory, uint32_t rows, uint32_t cols) {
  const uint64_t chunks = uint64_t{rows} * sample_chunks(cols);
  SampleScratch scratch;
  scratch.chunks = sample_chunks(cols);
  scratch.weights = reinterpret_cast<uint64_t*>(memory);
  scratch.sums = scratch.weights + chunks * kSampleChunk;
  scratch.heaviest = scratch.sums + chunks;
  scratch.highest = reinterpret_cast<uint32_t*>(scratch.heaviest + chunks);
  scratch.of_rows = reinterpret_cast<SampleRow*>(scratch.highest + chunks);
  return scratch;
}

void run_sample(gpu::Stream& stream, const SampleTask& task) {
  if (task.rows == 0) return;
  const gpu::LaunchShape chunks = choose_chunks_launch(task.rows, task.cols);
  gpu::LaunchShape rows = choose_row_launch(task.rows, task.cols);
  rows.shared_bytes = sizeof(BoundMemory);
  gpu::launch(stream, chunks, survey_kernel, task);
  gpu::launch(stream, rows, bound_kernel, task);
  gpu::launch(stream, chunks, weigh_kernel, task);
  launch_choice(stream, task);
}

}  // namespace dspack::kernels::cuda
