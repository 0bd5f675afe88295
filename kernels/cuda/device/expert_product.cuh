// What the products of routed experts have in common: which tile a block works on, what is multiplied, and what becomes
// of the sums.
#pragma once

#include <limits>

#include "format/base/check.h"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/expert_tiles.h"
#include "kernels/cuda/matrix.h"

namespace dspack::kernels::cuda::device {

/// One step for all experts. Assignment a reads input row a / slots and writes output row a.
struct ExpertProduct {
  const ExpertEntry* table;
  ExpertTiles tiles;
  Matrix form;  // without addresses
  RowsAt<const float> x;
  uint32_t slots;
  RowsAt<float> y;
};

/// Which groups of matrix rows a block takes: first, first + step, ..
struct RowTurns {
  uint32_t first = 0;
  uint32_t step = 0;
};

/// A block's tile. None: count is 0.
struct TileAt {
  uint32_t expert = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};

__device__ __forceinline__ TileAt find_tile(const ExpertTiles& tiles, uint32_t index) {
  if (tiles.tiles == nullptr) return {tiles.ids[index], index, 1};
  if (index >= *tiles.tile_count) return {};
  const ExpertTile found = tiles.tiles[index];
  return {found.expert, found.first, found.count};
}

/// Assignment `i` of a tile.
__device__ __forceinline__ uint32_t assignment_of(const ExpertTiles& tiles, const TileAt& tile, uint32_t i) {
  return tiles.order == nullptr ? tile.first + i : tiles.order[tile.first + i];
}

/// Gives a matrix its addresses.
__device__ __forceinline__ void take(const void* const (&planes)[kPlanes], Matrix& matrix) {
#pragma unroll
  for (unsigned plane = 0; plane < kPlanes; ++plane)
    matrix.planes[plane] = planes[plane];
}

/// silu(gate) * up.
struct GateUp {
  static constexpr unsigned kMatrices = 2;
  static __device__ __forceinline__ void find(const ExpertEntry& entry, Matrix (&matrices)[2]) {
    take(entry.gate, matrices[0]);
    take(entry.up, matrices[1]);
  }
  static __device__ __forceinline__ float finish(const float (&sums)[2]) { return silu_times(sums[0], sums[1]); }
};

struct Down {
  static constexpr unsigned kMatrices = 1;
  static __device__ __forceinline__ void find(const ExpertEntry& entry, Matrix (&matrices)[1]) {
    take(entry.down, matrices[0]);
  }
  static __device__ __forceinline__ float finish(const float (&sums)[1]) { return sums[0]; }
};

/// What is to be done once the tiles are made.
struct ExpertSteps {
  ExpertProduct gate_up;
  ExpertProduct down;
  WeightedSumTask sum;
};

/// Makes the tiles, of at most `tile` assignments. Precondition: there are tokens.
inline ExpertSteps begin_expert_steps(gpu::Stream& stream, const ExpertsTask& task, uint32_t tile) {
  const uint32_t hidden = task.form.gate_up.in;
  const uint32_t inner = task.form.gate_up.out;
  DSPACK_CHECK(task.form.down.in == inner && task.form.down.out == hidden, "an expert's matrices do not fit");
  DSPACK_CHECK(uint64_t{task.tokens} * task.top_k <= std::numeric_limits<uint32_t>::max(), "too many tokens");
  const ExpertsScratch scratch = lay_out_experts(
      task.scratch,
      {.hidden = hidden, .inner = inner, .experts = task.experts, .top_k = task.top_k, .rows = task.tokens});
  const ExpertTiles tiles = make_expert_tiles(stream, task, scratch, tile);
  return {.gate_up = {.table = task.table,
                      .tiles = tiles,
                      .form = {task.form.gate_up},
                      .x = task.x,
                      .slots = task.top_k,
                      .y = {.data = scratch.inner, .stride = inner}},
          .down = {.table = task.table,
                   .tiles = tiles,
                   .form = {task.form.down},
                   .x = {.data = scratch.inner, .stride = inner},
                   .slots = 1,
                   .y = task.cut.tiles > 0 ? task.parts : RowsAt<float>{.data = scratch.parts, .stride = hidden}},
          .sum = {.y = task.y,
                  .parts = {.data = scratch.parts, .stride = hidden},
                  .weights = task.weights,
                  .rows = task.tokens,
                  .cols = hidden,
                  .top_k = task.top_k}};
}

}  // namespace dspack::kernels::cuda::device
