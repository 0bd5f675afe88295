// A block takes 32 rows of one head, two per warp at a time, and up to eight tokens, whose inputs are in shared memory.
// Lanes share a row chunk by chunk (dot.cuh).
#include "kernels/cuda/linear/head_linear.h"

#include <algorithm>

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/linear/head_part.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kHeadWarps = device::kHeadThreads / gpu::kWarpThreads;
constexpr unsigned kHeadRowsOfWarp = 2;  // matrix rows that a warp multiplies at once
constexpr unsigned kHeadRows = 32;       // rows per block, some at a time
/// Steps of two rows that a warp has in flight (device/weight_stream.cuh): all of a block's rows if they have 512
/// bytes; with four blocks per multiprocessor 64 KiB.
constexpr unsigned kHeadDepth = 2;

template <class Stored, unsigned kTokens, bool kAligned>
__global__ void __launch_bounds__(device::kHeadThreads, kTokens <= 2 ? 4 : 2)
    plain_kernel(HeadLinearTask task, device::HeadBlocks blocks, uint32_t tile_groups) {
  gpu::launch_dependents();
  const device::HeadPart part = device::part_of_block<kTokens>(task, blocks);
  if (part.tokens == 0) return gpu::griddepcontrol_wait();
  const unsigned lane = gpu::lane_index();
  const uint32_t chunks = (task.weight.in - 1) / Stored::kPer16 + 1;
  const uint32_t tile_chunks = tile_groups * gpu::kWarpThreads;
  const uint32_t stride = tile_groups * Stored::kQuarters * gpu::kWarpThreads;
  auto* inputs = gpu::shared_memory<float4>();
  const Matrix matrices[1] = {task.weight};
  const uint32_t behind = (part.block + 1) * kHeadRows;  // end of the block's rows
  const device::WarpRows<kHeadRowsOfWarp> all{part.head * task.head_rows + task.first_row,
                                              behind < task.rows_used ? behind : task.rows_used,
                                              kHeadWarps * kHeadRowsOfWarp};
  uint32_t first_row = part.block * kHeadRows + gpu::warp_index() * kHeadRowsOfWarp;  // the warp's first row
  auto stream = device::stream_of<kAligned, Stored, kHeadDepth>(inputs + kTokens * stride, matrices, all, first_row,
                                                                chunks, lane, gpu::kWarpThreads);
  const device::ScalePlan<Stored> scales(task.weight);
  gpu::griddepcontrol_wait();
  bool is_staged = false;
  for (uint32_t block_row = part.block * kHeadRows; block_row < all.count;
       block_row += all.step, first_row += all.step) {
    uint32_t rows[kHeadRowsOfWarp];
    all.find(first_row, rows);
    float totals[1][kHeadRowsOfWarp][kTokens] = {};
    for (uint32_t first = 0; first < chunks; first += tile_chunks) {
      if (!is_staged) {
        device::stage_inputs<Stored, kTokens>(
            {device::input_of(task, part.first_token, part.head), task.x_row_stride}, task.weight.in, part.tokens,
            [](uint32_t token) { return uint64_t{token}; }, first * Stored::kPer16, tile_groups, inputs);
        is_staged = chunks <= tile_chunks;
      }
      const uint32_t end = first + tile_chunks < chunks ? first + tile_chunks : chunks;
      if (first_row < all.count) {
        device::add_share<Stored>(matrices, scales, rows, {first, end, lane, gpu::kWarpThreads, inputs, stride}, stream,
                                  totals);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kHeadRowsOfWarp; ++i) {
#pragma unroll
      for (unsigned token = 0; token < kTokens; ++token) {
        const float total = gpu::sum_of_warp(totals[0][i][token]);
        const bool is_there = token < part.tokens && first_row + i < all.count;
        if (is_there && lane == 0) device::output_of(task, part.first_token + token, part.head)[first_row + i] = total;
      }
    }
  }
}

template <class Stored, bool kAligned>
void launch(gpu::Stream& stream, const HeadLinearTask& task, const HeadLinearChoice& choice) {
  const auto run = [&](auto kernel) {
    gpu::launch_overlapping(stream, choice.shape, kernel, task, device::HeadBlocks(choice.blocks_a_head),
                            choice.tile_groups);
  };
  device::with_tokens<Stored, kAligned>(choice.tokens,
                                        [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>) {
                                          run(plain_kernel<Stored, kTokens, kAligned>);
                                        });
}

constexpr uint64_t kSharedBytes = 32 << 10;

}  // namespace

HeadLinearChoice choose_head_linear(const HeadLinearTask& task) {
  HeadLinearChoice choice = device::spread_heads(task, ceil_div(task.rows_used, kHeadRows));
  const uint32_t group_values = gpu::kWarpThreads * codes_in_16_bytes(task.weight.coding);
  const uint64_t group_bytes = uint64_t{group_values} * sizeof(float) * choice.tokens;
  const uint64_t that_fit = std::max<uint64_t>(1, kSharedBytes / group_bytes);
  choice.tile_groups = static_cast<uint32_t>(std::min(that_fit, ceil_div(task.weight.in, group_values)));
  choice.shape.shared_bytes =
      static_cast<unsigned>(choice.tile_groups * group_bytes) +
      device::stream_bytes(device::kHeadThreads, device::kPiecesUnderWay<1, kHeadRowsOfWarp, kHeadDepth>);
  return choice;
}

void head_linear_exact(gpu::Stream& stream, const HeadLinearTask& task) {
  if (task.rows == 0 || task.heads == 0 || task.rows_used == 0) return;
  const HeadLinearChoice choice = choose_head_linear(task);
  device::with_stored(task.weight.coding, [&]<class Stored>(Stored) {
    if (has_aligned_rows(form_of(task.weight))) return launch<Stored, true>(stream, task, choice);
    launch<Stored, false>(stream, task, choice);
  });
}

}  // namespace dspack::kernels::cuda
