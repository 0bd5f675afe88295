// The division of attention into splits and launches, and the second of its two kernels, which merges the splits: one
// block per query, one thread per four columns.
//
//   M = max m[s]     w[s] = exp(m[s] - M)     out = sum of w[s] O[s] / sum of w[s] l[s]
//
// Values are added with s ascending. Weights are in the lanes of every warp, whose sums are added lane by lane: only
// the statistics are waited for, while the first values are in flight. Only splits that the row has are read; none of
// them is empty.
#include "kernels/cuda/attention/attend.h"

#include <algorithm>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/cuda/attention/attend.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr uint64_t kScratchBytes = 128ULL << 20;
constexpr uint32_t kFewestSplits = 32;
constexpr uint32_t kMaxSplits = 128;
constexpr uint32_t kExactBlocks = 256;  // blocks that run at once on an H100: two share a multiprocessor

/// Splits per row so that one row makes about `blocks` blocks. Depends only on the number of heads.
uint32_t splits_for(uint32_t blocks, uint32_t heads, uint32_t queries_a_block) {
  const auto groups = static_cast<uint32_t>(ceil_div(heads, queries_a_block));
  return std::clamp(blocks / groups, kFewestSplits, kMaxSplits);
}

uint32_t most_splits(const AttendShape& shape, AttendChoice choice) {
  if (choice == AttendChoice::exact) return splits_for(kExactBlocks, shape.heads, kExactTile.queries);
  if (tensor_tile(choice).terms > 1)
    return splits_for(kTensorBlocks, shape.heads, tensor_tile(AttendChoice::split_32x2).queries);
  if (uint64_t{shape.rows} * shape.heads >= kUnsplitQueries) return 1;
  return splits_for(kTensorBlocks, shape.heads, tensor_tile(AttendChoice::tensor_64x2).queries);
}

bool fits(AttendChoice choice, const gpu::Properties& properties) {
  return tensor_shared_bytes(tensor_tile(choice)) <= properties.shared_bytes_per_block;
}

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
          .is_chosen = is_chosen,
          .has_bf16_keys = task.cache_dtype == Dtype::bf16 && reinterpret_cast<uint64_t>(task.cache) % 16 == 0};
}

AttendChoice attend_choice(const AttendShape& shape, Precision precision, const gpu::Properties& properties) {
  constexpr unsigned kFirstWithBf16 = 8;
  const bool is_split = precision == Precision::split;
  const bool are_multiples = shape.latent_dim % 16 == 0 && shape.rope_dim % 16 == 0;
  const bool are_small =
      shape.latent_dim <= kTensorColumns && uint64_t{shape.latent_dim} + shape.rope_dim <= kTensorKeyDim;
  if (precision == Precision::exact || (is_split && !shape.has_bf16_keys)) return AttendChoice::exact;
  if (!are_multiples || !are_small || properties.major < kFirstWithBf16) return AttendChoice::exact;
  using enum AttendChoice;
  const bool has_many = uint64_t{shape.rows} * shape.heads > tensor_tile(tensor_16x1).queries;
  const auto first_that_fits = [&](std::initializer_list<AttendChoice> of_many,
                                   std::initializer_list<AttendChoice> of_few) {
    for (const AttendChoice choice : of_many) {
      if (has_many && fits(choice, properties)) return choice;
    }
    for (const AttendChoice choice : of_few) {
      if (fits(choice, properties)) return choice;
    }
    return exact;
  };
  if (is_split) return first_that_fits({split_32x2}, {split_16x2});
  return first_that_fits({tensor_64x2, tensor_64x1}, {tensor_16x2, tensor_16x1});
}

bool fits_split(const gpu::Properties& properties) {
  return fits(AttendChoice::split_16x2, properties);
}

AttendSplits attend_splits(const AttendShape& shape, AttendChoice choice) {
  AttendSplits splits;
  splits.most = most_splits(shape, choice);
  splits.slots =
      static_cast<uint32_t>(std::clamp<uint64_t>(ceil_div(shape.position_limit, split_unit(choice)), 1, splits.most));
  const uint64_t row_bytes =
      uint64_t{shape.heads} * splits.slots * (value_stride(shape.latent_dim) + kSplitStats) * sizeof(float);
  splits.rows_a_run = static_cast<uint32_t>(
      std::clamp<uint64_t>(kScratchBytes / std::max<uint64_t>(row_bytes, 1), 1, std::max(shape.rows, 1U)));
  // Monotonic in rows and positions, so that the scratch of the largest call serves all.
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
  // Blocks of half the queries, if the device finds that blocks are few.
  const bool can_halve = !is_exact && tensor_tile(choice).is_halved;
  if (can_halve && launch.grid_x * launch.grid_y < kTensorBlocks) launch.grid_y *= 2;
  launch.grid_z = is_exact ? static_cast<unsigned>(ceil_div(shape.latent_dim, kExactTile.columns)) : 1;
  launch.threads = is_exact ? kExactTile.threads : tensor_tile(choice).warps * 32;
  launch.shared_bytes =
      static_cast<unsigned>(is_exact ? exact_shared_bytes(key_dim) : tensor_shared_bytes(tensor_tile(choice)));
  return launch;
}

uint64_t attend_scratch_bytes(const AttendShape& shape) {
  uint64_t bytes = attend_splits(shape, AttendChoice::exact).scratch_bytes;
  // Calls of fewer rows may have more splits per row, which may need more memory.
  AttendShape cut = shape;
  if (shape.heads > 0) cut.rows = std::min(shape.rows, (kUnsplitQueries - 1) / shape.heads);
  for (const AttendShape& possible : {shape, cut})
    bytes = std::max(bytes, attend_splits(possible, AttendChoice::tensor_64x2).scratch_bytes);
  return bytes;
}

void merge_splits(gpu::Stream& stream, const device::AttendRun& run) {
  gpu::launch_overlapping(stream, {.grid_x = run.queries, .threads = kThreads}, merge_kernel, run);
}

}  // namespace dspack::kernels::cuda
