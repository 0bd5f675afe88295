#include "kernels/cuda/attention/attend.h"

#include <algorithm>
#include <initializer_list>

#include "format/base/size.h"

namespace dspack::kernels::cuda {
namespace {

constexpr uint64_t kScratchBytes = 128ULL << 20;
constexpr uint32_t kFewestSplits = 32;
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

}  // namespace

AttendShape shape_of(const MlaAttendTask& task) {
  const uint32_t limit = task.position_limit();
  const bool is_chosen = !task.choice.empty();
  return {.rows = task.rows,
          .heads = task.heads,
          .latent_dim = task.latent_dim,
          .rope_dim = task.rope_dim,
          .position_limit = is_chosen ? std::min(limit, task.choice.most) : limit,
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

}  // namespace dspack::kernels::cuda
