// What the two kernels of the indexer's choice share. Threads, lifetime, errors: as choose.h.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/choose.h"

namespace dspack::kernels::cuda::device {

/// Arguments of the kernels, for the rows of one run.
struct ChooseRun {
  const float* queries;  // [rows, heads, keys.in]
  const float* weights;  // [rows, heads]
  Matrix keys;
  uint32_t* ids;             // [rows, most]
  uint32_t* counts;          // [rows]
  uint32_t* orders;          // [rows, order_stride]
  uint32_t* flags;           // [rows, order_stride / 32]
  uint64_t* lists;           // [rows, kMostListed]
  ChooseCounters* counters;  // [rows], zero
  const uint32_t* live;      // or null
  uint32_t most;
  uint32_t rows;
  uint32_t heads;
  uint32_t first_position;
  uint32_t order_stride;
  uint32_t key_stride;     // in shared memory, in floats
  uint32_t rows_of_block;  // of the scores
};

/// Positions that row `row` of the run sees.
__device__ __forceinline__ uint32_t positions_seen(const ChooseRun& run, uint32_t row) {
  const uint32_t live = run.live == nullptr ? 0 : *run.live;
  return run.first_position + live + row + 1;
}

}  // namespace dspack::kernels::cuda::device

namespace dspack::kernels::cuda {

/// orders of all positions that rows with a choice to make see.
void run_scores(gpu::Stream& stream, const ChooseTask& task, const device::ChooseRun& run);
/// ids and counts, from the orders where there is a choice to make.
void run_select(gpu::Stream& stream, const device::ChooseRun& run, uint32_t position_limit);

}  // namespace dspack::kernels::cuda
