// Shared code of both attention kernels: the division of a call into launches, the positions that a block works on, the
// places of its partial results, and single values of an FP8 cache. Threads, lifetime, errors: as attend.h.
#pragma once

#include <dspack_gpu.h>

#include <algorithm>

#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/divisor.cuh"
#include "kernels/latent_rows.h"

namespace dspack::kernels::cuda::device {

/// Arguments of the kernels, for the queries of one run.
struct AttendRun {
  const float* query_latent;  // [queries, latent_dim]
  const float* query_rope;
  const void* cache;
  float* out;              // [queries, latent_dim]
  float* values;           // [queries, slots, value_stride]
  float* stats;            // [queries, slots]: maximum, sum of weights
  const uint32_t* live;    // or null
  const uint32_t* chosen;  // [rows, most_chosen], or null
  const uint32_t* counts;  // [rows], or null
  uint32_t most_chosen;
  uint32_t queries;
  uint32_t heads;
  Divisor by_heads;  // divides a query's number to give its row
  uint32_t latent_dim;
  uint32_t key_dim;
  uint32_t rope_row_stride;
  uint32_t rope_head_stride;
  uint32_t first_position;
  Divisor by_splits;    // by the most splits of a row
  uint32_t split_unit;  // a power of two
  uint32_t slots;
  uint32_t value_stride;
  uint32_t key_stride;  // floats between keys or queries in the exact kernel's shared memory
  float scale;
  Fp8Row fp8_row;  // layout of an FP8 cache's rows
};

struct PositionRange {
  uint32_t begin;
  uint32_t end;
  [[nodiscard]] __device__ __forceinline__ bool holds(uint32_t position) const {
    return position >= begin && position < end;
  }
};

__device__ __forceinline__ float minus_infinity() {
  return gpu::bits_to_float(0xff800000U);
}
/// The larger; the second if the first is NaN.
__device__ __forceinline__ float larger(float a, float b) {
  return a > b ? a : b;
}

__device__ __forceinline__ uint32_t row_of(const AttendRun& run, uint32_t query) {
  return divide(query, run.by_heads);
}

/// Positions per split of a row that sees `positions`. The bits of a row depend on it.
__device__ __forceinline__ uint32_t split_length(const AttendRun& run, uint32_t positions) {
  const uint32_t even = divide(positions - 1, run.by_splits) + 1;
  return (even + run.split_unit - 1) & ~(run.split_unit - 1);
}

/// Number of splits of a row.
__device__ __forceinline__ uint32_t splits_of(const AttendRun& run, uint32_t positions) {
  return (positions - 1) / split_length(run, positions) + 1;
}

/// The queries of a block.
struct BlockQueries {
  uint32_t first;
  uint32_t end;
};

/// Queries of block `block`, which takes `count` of them; with a choice all of one row. Empty after the run's last row,
/// since the call's shorter last run uses the same grid.
__device__ __forceinline__ BlockQueries queries_of_block(const AttendRun& run, uint32_t block, uint32_t count) {
  if (run.chosen == nullptr) return {block * count, run.queries};
  const uint32_t of_row = (run.heads - 1) / count + 1;
  const uint32_t row = block / of_row * run.heads;
  return {row + block % of_row * count, row < run.queries ? row + run.heads : 0};
}

/// Maps the positions that a query's row sees to positions in the cache.
struct PositionMap {
  const uint32_t* ids;  // the row's list; null: identity
  __device__ __forceinline__ PositionMap(const AttendRun& run, uint32_t query)
      : ids(run.chosen == nullptr ? nullptr : run.chosen + uint64_t{row_of(run, query)} * run.most_chosen) {}
  [[nodiscard]] __device__ __forceinline__ bool is_chosen() const { return ids != nullptr; }
  [[nodiscard]] __device__ __forceinline__ uint32_t at(uint32_t position) const {
    return ids == nullptr ? position : ids[position];
  }
};

/// Number of positions that row `row` of the run sees.
__device__ __forceinline__ uint32_t positions_of(const AttendRun& run, uint32_t row) {
  if (run.counts != nullptr) return run.counts[row];
  const uint32_t live = run.live == nullptr ? 0 : *run.live;
  return run.first_position + live + row + 1;
}

__device__ __forceinline__ PositionRange range_of_split(const AttendRun& run, uint32_t positions, uint32_t split) {
  const uint32_t length = split_length(run, positions);
  const uint32_t begin = split * length < positions ? split * length : positions;
  return {begin, length < positions - begin ? begin + length : positions};
}

/// The range of query `query` in split `split`; empty after the block's last query.
__device__ __forceinline__ PositionRange range_of_query(const AttendRun& run, const BlockQueries& queries,
                                                        uint32_t query, uint32_t split) {
  if (query >= queries.end) return {0, 0};
  return range_of_split(run, positions_of(run, row_of(run, query)), split);
}

/// The positions of a split that any query of a block sees. Rows of a block have at most two lengths of splits, if the
/// number of positions passes a multiple of unit * splits between them; between the two there may be a gap.
struct BlockPositions {
  uint32_t begin;
  uint32_t gap_begin;
  uint32_t gap_end;
  uint32_t end;  // 0: nothing to do
  /// The position after the tile of `step` positions at `position`.
  [[nodiscard]] __device__ __forceinline__ uint32_t behind(uint32_t position, uint32_t step) const {
    const uint32_t next = position + step;
    return next >= gap_begin && next < gap_end ? gap_end : next;
  }
};

__device__ __forceinline__ BlockPositions positions_of_block(const AttendRun& run, const BlockQueries& queries,
                                                             uint32_t count, uint32_t split) {
  const uint32_t first = queries.first;
  const uint32_t last = (first + count < queries.end ? first + count : queries.end) - 1;
  BlockPositions all = {0xffffffffU, 0, 0, 0};
  for (uint32_t row = row_of(run, first); row <= row_of(run, last); ++row) {
    const PositionRange range = range_of_split(run, positions_of(run, row), split);
    if (range.begin == range.end) continue;
    if (all.end == 0) {
      all = {range.begin, range.end, range.begin, range.end};
    } else if (range.begin == all.begin) {
      all.gap_begin = range.end > all.gap_begin ? range.end : all.gap_begin;
    } else {  // a later row with longer splits, which begin later
      all.gap_end = range.begin;
    }
    all.end = range.end > all.end ? range.end : all.end;
  }
  return all;
}

/// Addresses of one query's values: its latent part, then its rotary part.
struct QueryRow {
  const float* latent;
  const float* rope;
  uint32_t latent_dim;
  __device__ __forceinline__ QueryRow(const AttendRun& run, uint32_t query)
      : latent(run.query_latent + uint64_t{query} * run.latent_dim), latent_dim(run.latent_dim) {
    const uint32_t row = row_of(run, query);
    rope = run.query_rope + uint64_t{row} * run.rope_row_stride +
           (query - row * run.heads) * uint64_t{run.rope_head_stride};
  }
  [[nodiscard]] __device__ __forceinline__ const float* at(uint32_t column) const {
    return column < latent_dim ? latent + column : rope + (column - latent_dim);
  }
};

[[nodiscard]] __device__ __forceinline__ float query_value(const AttendRun& run, uint32_t query, uint32_t column) {
  return *QueryRow(run, query).at(column);
}

/// Whether every group of `values` values of a query (a multiple of four), beginning at a multiple of that number, is
/// contiguous and 16-byte aligned.
[[nodiscard]] __device__ __forceinline__ bool has_whole_pieces(const AttendRun& run, uint32_t values) {
  const uint64_t places = reinterpret_cast<uint64_t>(run.query_latent) | reinterpret_cast<uint64_t>(run.query_rope);
  return places % 16 == 0 && (run.latent_dim | run.key_dim) % values == 0 &&
         (run.rope_row_stride | run.rope_head_stride) % 4 == 0;
}

/// Index of the values and statistics of a query's split.
__device__ __forceinline__ uint64_t slot_of(const AttendRun& run, uint32_t query, uint32_t split) {
  return uint64_t{query} * run.slots + split;
}

/// The factor for sums relative to the maximum `before`, now that the maximum is `now`. If both are minus infinity
/// nothing has been summed.
__device__ __forceinline__ float factor_of(float before, float now) {
  return before == now ? 1.0F : gpu::exponential(before - now);
}

/// The scale of the tile that contains a column of the latent.
__device__ __forceinline__ float fp8_row_scale(const uint8_t* row, const Fp8Row& layout, uint32_t column) {
  return reinterpret_cast<const float*>(row + layout.scales_at)[column / kLatentTile];
}

/// Column `column` of [latent | rotary key].
__device__ __forceinline__ float fp8_row_value(const uint8_t* row, const Fp8Row& layout, uint32_t latent_dim,
                                               uint32_t column) {
  if (column >= latent_dim) return StoredBf16::decode_one(row + layout.rope_at, column - latent_dim);
  return StoredF8::decode_one(row, column) * fp8_row_scale(row, layout, column);
}

}  // namespace dspack::kernels::cuda::device

namespace dspack::kernels::cuda {

// A call is divided into runs of as many rows as fit the scratch; each run is a kernel for the splits and one that
// merges them.

/// out = the splits of every query, merged in order.
void merge_splits(gpu::Stream& stream, const device::AttendRun& run);

/// Calls launch_splits(run, shape) for each run.
template <class LaunchSplits>
void for_each_run(gpu::Stream& stream, const MlaAttendTask& task, AttendChoice choice,
                  const LaunchSplits& launch_splits) {
  if (task.rows == 0 || task.heads == 0) return;
  const AttendShape shape = shape_of(task);
  const AttendSplits splits = attend_splits(shape, choice);
  const gpu::LaunchShape launch = attend_launch(shape, choice);
  const uint32_t key_dim = task.latent_dim + task.rope_dim;
  for (uint32_t row = 0; row < task.rows; row += splits.rows_a_run) {
    const uint32_t rows = std::min(splits.rows_a_run, task.rows - row);
    const uint64_t values = uint64_t{rows} * task.heads * splits.slots * value_stride(task.latent_dim);
    const uint64_t first_value = uint64_t{row} * task.heads * task.latent_dim;
    const device::AttendRun run{
        .query_latent = task.query_latent + first_value,
        .query_rope = task.query_rope + uint64_t{row} * task.rope_row_stride,
        .cache = task.cache,
        .out = task.out + first_value,
        .values = task.partial,
        .stats = task.partial + values,
        .live = task.live.value,
        .chosen = task.choice.empty() ? nullptr : task.choice.ids + uint64_t{row} * task.choice.most,
        .counts = task.choice.empty() ? nullptr : task.choice.counts + row,
        .most_chosen = task.choice.most,
        .queries = rows * task.heads,
        .heads = task.heads,
        .by_heads = device::divisor_of(task.heads),
        .latent_dim = task.latent_dim,
        .key_dim = key_dim,
        .rope_row_stride = task.rope_row_stride,
        .rope_head_stride = task.rope_head_stride,
        .first_position = task.first_position + row,
        .by_splits = device::divisor_of(splits.most),
        .split_unit = split_unit(choice),
        .slots = splits.slots,
        .value_stride = value_stride(task.latent_dim),
        .key_stride = exact_stride(key_dim),
        .scale = task.scale,
        .fp8_row = fp8_row({task.latent_dim, task.rope_dim})};
    launch_splits(run, launch);
    merge_splits(stream, run);
  }
}

}  // namespace dspack::kernels::cuda
