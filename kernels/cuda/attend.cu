// How attention is cut into splits and launches, and the second of its two kernels, which merges the splits: a block
// for each query, a thread for every 256th column.
//
//   M = max m[s]     w[s] = exp(m[s] - M)     out = sum of w[s] O[s] / sum of w[s] l[s], s ascending
//
// Only splits that the row has are read: none of them is empty.
#include "kernels/cuda/attend.h"

#include <algorithm>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/cuda/device/attend.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr uint64_t kScratchBytes = 128ULL << 20;
constexpr uint32_t kFewestSplits = 32;
constexpr uint32_t kMostSplits = 128;
// Blocks that run at once on an H100 (132 multiprocessors): two exact ones share one, or one of the tensor kernel.
constexpr uint32_t kExactBlocks = 256;
constexpr uint32_t kTensorBlocks = 128;

/// Splits that make `blocks` blocks for one row. It follows from the number of heads alone.
uint32_t splits_for(uint32_t blocks, uint32_t heads, uint32_t queries_a_block) {
  const auto groups = static_cast<uint32_t>(ceil_div(heads, queries_a_block));
  return std::clamp(blocks / groups, kFewestSplits, kMostSplits);
}

uint32_t most_splits(const AttendShape& shape, AttendChoice choice) {
  if (choice == AttendChoice::exact) return splits_for(kExactBlocks, shape.heads, kExactTile.queries);
  if (uint64_t{shape.rows} * shape.heads >= kUnsplitQueries) return 1;
  return splits_for(kTensorBlocks, shape.heads, tensor_tile(AttendChoice::tensor_64x2).queries);
}

bool fits(const AttendShape& shape, AttendChoice choice, const gpu::Properties& properties) {
  return tensor_shared_bytes(tensor_tile(choice), shape.latent_dim + shape.rope_dim) <=
         properties.shared_bytes_per_block;
}

constexpr unsigned kThreads = 256;

__global__ void __launch_bounds__(kThreads) merge_kernel(device::AttendRun run) {
  gpu::let_next_begin();
  gpu::wait_for_previous();
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

AttendShape shape_of(const MlaAttendTask& task) {
  const uint64_t end = uint64_t{task.first_position} + task.rows;
  const bool is_live = task.live_position != nullptr;
  const bool is_chosen = task.chosen != nullptr;
  const uint32_t limit = is_live ? task.position_limit : static_cast<uint32_t>(end);
  return {.rows = task.rows,
          .heads = task.heads,
          .latent_dim = task.latent_dim,
          .rope_dim = task.rope_dim,
          .position_limit = is_chosen ? std::min(limit, task.most_chosen) : limit,
          .is_chosen = is_chosen};
}

AttendChoice attend_choice(const AttendShape& shape, const gpu::Properties& properties) {
  constexpr unsigned kFirstWithBf16 = 8;
  const bool are_multiples = shape.latent_dim % 16 == 0 && shape.rope_dim % 16 == 0;
  const bool are_small =
      shape.latent_dim <= kTensorColumns && uint64_t{shape.latent_dim} + shape.rope_dim <= kTensorKeyDim;
  if (!are_multiples || !are_small || properties.major < kFirstWithBf16) return AttendChoice::exact;
  const bool has_many = uint64_t{shape.rows} * shape.heads > tensor_tile(AttendChoice::tensor_16x1).queries;
  for (const AttendChoice choice : {AttendChoice::tensor_64x2, AttendChoice::tensor_64x1}) {
    if (has_many && fits(shape, choice, properties)) return choice;
  }
  for (const AttendChoice choice : {AttendChoice::tensor_16x2, AttendChoice::tensor_16x1}) {
    if (fits(shape, choice, properties)) return choice;
  }
  return AttendChoice::exact;
}

AttendSplits attend_splits(const AttendShape& shape, AttendChoice choice) {
  AttendSplits splits;
  splits.most = most_splits(shape, choice);
  splits.slots =
      static_cast<uint32_t>(std::clamp<uint64_t>(ceil_div(shape.position_limit, kSplitUnit), 1, splits.most));
  const uint64_t row_bytes =
      uint64_t{shape.heads} * splits.slots * (value_stride(shape.latent_dim) + kSplitStats) * sizeof(float);
  splits.rows_a_run = static_cast<uint32_t>(
      std::clamp<uint64_t>(kScratchBytes / std::max<uint64_t>(row_bytes, 1), 1, std::max(shape.rows, 1U)));
  // Never less for more rows or positions, so that the scratch of the largest call serves all.
  splits.scratch_bytes = std::max(row_bytes, std::min(row_bytes * shape.rows, kScratchBytes));
  return splits;
}

gpu::LaunchShape attend_launch(const AttendShape& shape, AttendChoice choice) {
  const AttendSplits splits = attend_splits(shape, choice);
  const bool is_exact = choice == AttendChoice::exact;
  const uint32_t key_dim = shape.latent_dim + shape.rope_dim;
  const uint32_t queries = is_exact ? kExactTile.queries : tensor_tile(choice).queries;
  const uint64_t rows = std::min(shape.rows, splits.rows_a_run);
  gpu::LaunchShape launch;
  launch.grid_x = static_cast<unsigned>(shape.is_chosen ? rows * ceil_div(shape.heads, queries)
                                                        : ceil_div(rows * shape.heads, queries));
  launch.grid_y = splits.slots;
  launch.grid_z = is_exact ? static_cast<unsigned>(ceil_div(shape.latent_dim, kExactTile.columns)) : 1;
  launch.threads = is_exact ? kExactTile.threads : tensor_tile(choice).warps * 32;
  launch.shared_bytes =
      static_cast<unsigned>(is_exact ? exact_shared_bytes(key_dim) : tensor_shared_bytes(tensor_tile(choice), key_dim));
  return launch;
}

uint64_t attend_scratch_bytes(const AttendShape& shape) {
  uint64_t bytes = attend_splits(shape, AttendChoice::exact).scratch_bytes;
  // Calls of fewer rows may be cut finer, and need the more for it.
  AttendShape cut = shape;
  if (shape.heads > 0) cut.rows = std::min(shape.rows, (kUnsplitQueries - 1) / shape.heads);
  for (const AttendShape& possible : {shape, cut})
    bytes = std::max(bytes, attend_splits(possible, AttendChoice::tensor_64x2).scratch_bytes);
  return bytes;
}

void merge_splits(gpu::Stream& stream, const device::AttendRun& run) {
  const gpu::LaunchShape shape{
      .grid_x = run.queries, .threads = kThreads, .shared_bytes = static_cast<unsigned>(3 * run.slots * sizeof(float))};
  gpu::launch_overlapping(stream, shape, merge_kernel, run);
}

}  // namespace dspack::kernels::cuda
