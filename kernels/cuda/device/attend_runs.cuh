// How a call becomes launches: runs of as many rows as the scratch holds, each of a kernel for the splits and one that
// merges them. Threads, lifetime, errors: as attend.h.
#pragma once

#include <dspack_gpu.h>

#include <algorithm>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/device/attend_split.cuh"

namespace dspack::kernels::cuda {

/// out = the splits of every query, merged in their order.
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
        .live = task.live_position,
        .queries = rows * task.heads,
        .heads = task.heads,
        .latent_dim = task.latent_dim,
        .key_dim = key_dim,
        .rope_row_stride = task.rope_row_stride,
        .rope_head_stride = task.rope_head_stride,
        .first_position = task.first_position + row,
        .most_splits = splits.most,
        .slots = splits.slots,
        .value_stride = value_stride(task.latent_dim),
        .key_stride = choice == AttendChoice::exact ? exact_stride(key_dim) : tensor_row_bytes(key_dim),
        .scale = task.scale,
        .fp8_row = fp8_row({task.latent_dim, task.rope_dim})};
    launch_splits(run, launch);
    merge_splits(stream, run);
  }
}

}  // namespace dspack::kernels::cuda
