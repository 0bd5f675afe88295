// Shared code of the kernels of the indexer's choice. Threads, lifetime, errors: as choose.h.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/order.cuh"
#include "kernels/cuda/device/scales.cuh"
#include "kernels/cuda/sparse/choose.h"

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
  uint64_t* lists;           // [rows, kMaxListed]
  ChooseCounters* counters;  // [rows], zero
  const uint32_t* live;      // or null
  uint32_t most;
  uint32_t rows;
  uint32_t heads;
  uint32_t first_position;
  uint32_t every;  // positions that a key stands for
  uint32_t order_stride;
  uint32_t key_stride;        // in shared memory, in floats
  uint32_t tensor_row_bytes;  // in shared memory, in bytes of BF16
  uint32_t rows_of_block;     // rows per block of the scores
};

/// Number of positions up to that of row `row` of the run.
__device__ __forceinline__ uint32_t positions_until(const ChooseRun& run, uint32_t row) {
  const uint32_t live = run.live == nullptr ? 0 : *run.live;
  return run.first_position + live + row + 1;
}
/// Number of keys that row `row` sees.
__device__ __forceinline__ uint32_t keys_seen(const ChooseRun& run, uint32_t row) {
  return positions_until(run, row) / run.every;
}

// Layout of both score kernels: a thread has four positions, and of every 64 heads (32 if there are no more) the eight
// (four) at lane / 4 + 8 i. The eight lanes of a position are those with the same lane % 4.

inline constexpr unsigned kKeyLanes = 4;
inline constexpr unsigned kHeadLanes = gpu::kWarpThreads / kKeyLanes;
inline constexpr unsigned kKeysOfThread = 4;

/// Calls score(first, end, first_row, end_row) for this block's tiles of kScorePositions positions: with the rows that
/// have a choice to make and see position `first`; none of them sees position `end`.
template <class Score>
__device__ __forceinline__ void for_each_tile(const ChooseRun& run, Score score) {
  const uint32_t begin_row = gpu::block_index().y * run.rows_of_block;
  const uint32_t behind = begin_row + run.rows_of_block;
  const uint32_t end_row = behind < run.rows ? behind : run.rows;
  const uint32_t end = keys_seen(run, end_row - 1);
  if (end <= run.most) return;
  for (uint32_t first = gpu::block_index().x * kScorePositions; first < end;
       first += gpu::grid_blocks().x * kScorePositions) {
    // Each row is one position further than the previous row.
    const uint32_t needed = ((first > run.most ? first : run.most) + 1) * run.every;
    const uint32_t seen = positions_until(run, begin_row);
    score(first, end, needed > seen ? begin_row + (needed - seen) : begin_row, end_row);
  }
}

/// The scales of this thread's positions; 1 from `end` on, and for keys without scales.
__device__ __forceinline__ void load_scales(const ChooseRun& run, const uint32_t (&positions)[kKeysOfThread],
                                            uint32_t end, float (&scales)[kKeysOfThread]) {
#pragma unroll
  for (unsigned j = 0; j < kKeysOfThread; ++j) {
    const float* scale = positions[j] < end ? scales_of(run.keys, positions[j]) : nullptr;
    scales[j] = scale == nullptr ? 1.0F : *scale;
  }
}

/// Adds the contributions of this thread's heads, among those from `head` on, to the scores of its positions.
template <unsigned kHeads>
__device__ __forceinline__ void add_heads(const ChooseRun& run, uint32_t row, uint32_t head,
                                          const float (&products)[kHeads][kKeysOfThread],
                                          const float (&scales)[kKeysOfThread], float (&scores)[kKeysOfThread]) {
#pragma unroll
  for (unsigned i = 0; i < kHeads; ++i) {
    const uint32_t at = head + i * kHeadLanes + gpu::lane_index() / kKeyLanes;
    if (at >= run.heads) break;
    const float weight = run.weights[uint64_t{row} * run.heads + at];
#pragma unroll
    for (unsigned j = 0; j < kKeysOfThread; ++j) {
      const float product = products[i][j] * scales[j];
      scores[j] = gpu::fma_rn(weight, product < 0 ? 0.0F : product, scores[j]);  // keeps a NaN
    }
  }
}

/// Adds the lanes' parts of a row's scores; stores and counts their orders if the row sees the position.
__device__ __forceinline__ void store_orders(const ChooseRun& run, uint32_t row,
                                             const uint32_t (&positions)[kKeysOfThread],
                                             float (&scores)[kKeysOfThread]) {
  const uint32_t seen = keys_seen(run, row);
#pragma unroll
  for (unsigned j = 0; j < kKeysOfThread; ++j) {
#pragma unroll
    for (unsigned apart = gpu::kWarpThreads / 2; apart >= kKeyLanes; apart /= 2)
      scores[j] += gpu::shuffle_xor(scores[j], apart);
    if (gpu::lane_index() < kKeyLanes && positions[j] < seen) {
      const uint32_t order = order_of(scores[j]);
      run.orders[uint64_t{row} * run.order_stride + positions[j]] = order;
      gpu::add_together(run.counters[row].of_digit + (order >> (32 - kFirstDigitBits)), 1);
    }
    scores[j] = 0;
  }
}

}  // namespace dspack::kernels::cuda::device

namespace dspack::kernels::cuda {

/// Orders of all positions that rows with a choice to make see, in FP32 or on tensor cores (fits_tensor_scores).
void run_scores_exact(gpu::Stream& stream, const ChooseTask& task, const device::ChooseRun& run);
void run_scores_tensor(gpu::Stream& stream, const ChooseTask& task, const device::ChooseRun& run);
/// Writes ids and counts, from the orders if there is a choice to make.
void run_select(gpu::Stream& stream, const device::ChooseRun& run, uint32_t position_limit);

}  // namespace dspack::kernels::cuda
