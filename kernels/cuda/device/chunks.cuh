// The chunks of a row of logits, as the kernels that draw tokens go through them. Threads: all lanes of a warp
// together.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/order.cuh"
#include "kernels/cuda/device/warp_sums.cuh"
#include "kernels/cuda/sample.h"

namespace dspack::kernels::cuda::device {

/// One row's part of everything.
struct RowView {
  const float* logits;
  const uint32_t* highest;   // [chunks]
  const uint64_t* weights;   // [chunks, kSampleChunk]
  const uint64_t* sums;      // [chunks]
  const uint64_t* heaviest;  // [chunks]
  uint32_t chunks;
  uint32_t cols;
};

__device__ __forceinline__ RowView view_of(const SampleTask& task, uint64_t row) {
  const uint32_t chunks = task.scratch.chunks;
  return {.logits = task.logits.data + row * task.logits.stride,
          .highest = task.scratch.highest + row * chunks,
          .weights = task.scratch.weights + row * chunks * kSampleChunk,
          .sums = task.scratch.sums + row * chunks,
          .heaviest = task.scratch.heaviest + row * chunks,
          .chunks = chunks,
          .cols = task.cols};
}

/// visit(i, is_there) for every place of the chunks for which is_relevant(chunk), by the warps of the block in turn.
template <class IsRelevant, class Visit>
__device__ void walk_chunks(const RowView& row, IsRelevant is_relevant, Visit visit) {
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint32_t first = gpu::warp_index(); first < row.chunks; first += warps * gpu::kWarpThreads) {
    const uint32_t mine = first + gpu::lane_index() * warps;
    unsigned left = gpu::ballot(mine < row.chunks && is_relevant(mine));
    for (; left != 0; left &= left - 1) {
      const uint32_t begin = (first + gpu::lowest_bit(left) * warps) * kSampleChunk;
      for (uint32_t i = begin + gpu::lane_index(); i < begin + kSampleChunk; i += gpu::kWarpThreads)
        visit(i, i < row.cols);
    }
  }
}

/// One block: the first index at which the sum of weights, in the order of index, reaches beyond `place`, which is
/// below the sum of all; one lane stores it. sum_of_chunk(chunk, is_there) is called with a chunk for each lane,
/// weight_at(i, is_there) with a place for each.
template <class SumOfChunk, class WeightAt>
__device__ void store_index_at(const RowView& row, uint64_t place, uint64_t* of_warps, uint32_t* id,
                               SumOfChunk sum_of_chunk, WeightAt weight_at) {
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t of_warp = (row.chunks + warps - 1) / warps;
  const uint32_t begin = gpu::warp_index() * of_warp;
  const uint32_t end = begin + of_warp < row.chunks ? begin + of_warp : row.chunks;
  uint64_t sum = 0;
  for (uint32_t first = begin; first < end; first += gpu::kWarpThreads)
    sum += sum_of_chunk(first + gpu::lane_index(), first + gpu::lane_index() < end);
  sum = sum_of_warp(sum);
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = sum;
  gpu::block_barrier();  // the warps' sums are there
  uint64_t before = 0;
  for (unsigned warp = 0; warp < gpu::warp_index(); ++warp)
    before += of_warps[warp];
  if (place < before || place - before >= sum) return;  // one warp goes on
  place -= before;
  uint32_t chunk = begin;
  for (;; chunk += gpu::kWarpThreads) {
    const uint64_t so_far = sum_so_far(sum_of_chunk(chunk + gpu::lane_index(), chunk + gpu::lane_index() < end));
    const unsigned beyond = gpu::ballot(so_far > place);
    const uint64_t all = shuffle_wide(so_far, gpu::kWarpThreads - 1);
    if (beyond == 0) {
      place -= all;
      continue;
    }
    const unsigned lane = gpu::lowest_bit(beyond);
    const uint64_t less = shuffle_wide(so_far, (lane + gpu::kWarpThreads - 1) % gpu::kWarpThreads);
    if (lane > 0) place -= less;
    chunk += lane;
    break;
  }
  for (uint32_t i = chunk * kSampleChunk + gpu::lane_index();; i += gpu::kWarpThreads) {
    const uint64_t so_far = sum_so_far(weight_at(i, i < row.cols));
    const unsigned beyond = gpu::ballot(so_far > place);
    if (beyond != 0) {
      if (gpu::lane_index() == gpu::lowest_bit(beyond)) *id = i;
      return;
    }
    place -= shuffle_wide(so_far, gpu::kWarpThreads - 1);
  }
}

}  // namespace dspack::kernels::cuda::device
