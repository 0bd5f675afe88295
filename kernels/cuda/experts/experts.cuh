// Shared code of the kernels of routed experts: the tile that a block works on, the matrices to multiply, the use of
// the sums, and the single launch of all steps.
#pragma once

#include <limits>

#include "format/base/check.h"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/tokens/elementwise.cuh"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels::cuda::device {

/// One step for all experts. Assignment a reads input row a / slots and writes output row a.
struct ExpertProduct {
  const ExpertEntry* table;
  ExpertTiles tiles;
  Matrix form;  // without addresses
  RowsAt<const float> x;
  RoundedRows rounded;  // x, unless products are exact
  uint32_t slots;
  RowsAt<float> y;
  float limit;  // ExpertMatrices
};

/// The groups of matrix rows that a block takes: first, first + step, ..
struct RowTurns {
  uint32_t first = 0;
  uint32_t step = 0;
};

/// A block's tile; count 0: none.
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

/// Sets a matrix's addresses.
__device__ __forceinline__ void take(const void* const (&planes)[kPlanes], Matrix& matrix) {
#pragma unroll
  for (unsigned plane = 0; plane < kPlanes; ++plane)
    matrix.planes[plane] = planes[plane];
}

/// Gated values: silu(gate) * up, each limited.
struct GateUp {
  static constexpr unsigned kMatrices = 2;
  static __device__ __forceinline__ void find(const ExpertEntry& entry, Matrix (&matrices)[2]) {
    take(entry.gate, matrices[0]);
    take(entry.up, matrices[1]);
  }
  static __device__ __forceinline__ float finish(const float (&sums)[2], float limit) {
    return silu_times(sums[0], sums[1], limit);
  }
};

struct Down {
  static constexpr unsigned kMatrices = 1;
  static __device__ __forceinline__ void find(const ExpertEntry& entry, Matrix (&matrices)[1]) {
    take(entry.down, matrices[0]);
  }
  static __device__ __forceinline__ float finish(const float (&sums)[1], float /*limit*/) { return sums[0]; }
};

/// One step of a shared expert, for all tokens: shared_expert.cuh.
struct SharedProduct {
  Matrix matrices[2];  // gate and up, or down
  RowsAt<const float> x;
  RowsAt<float> y;
  uint32_t tokens;
  uint32_t warps_a_row;  // warps that share a matrix row
  /// Part of each token's input in shared memory at once: groups of 32 chunks, or for tensor cores columns.
  uint32_t staged;
  RoundedRows rounded;  // x, unless products are exact
  float limit;          // ExpertMatrices
};

/// The steps after the tiles are made.
struct ExpertSteps {
  ExpertProduct gate_up;
  ExpertProduct down;
  WeightedSumTask sum;
};

/// Makes the tiles, of at most `tile` assignments. Precondition: task.tokens > 0.
inline ExpertSteps begin_expert_steps(gpu::Stream& stream, const ExpertsTask& task, uint32_t tile,
                                      Precision precision) {
  const uint32_t hidden = task.form.gate_up.in;
  const uint32_t inner = task.form.gate_up.out;
  DSPACK_CHECK(task.form.down.in == inner && task.form.down.out == hidden, "an expert's matrices do not fit");
  DSPACK_CHECK(uint64_t{task.tokens} * task.top_k <= std::numeric_limits<uint32_t>::max(), "too many tokens");
  const ExpertsScratch scratch = lay_out_experts(task.scratch,
                                                 {.hidden = hidden,
                                                  .inner = inner,
                                                  .experts = task.experts,
                                                  .top_k = task.top_k,
                                                  .rows = task.tokens,
                                                  .parts_only = task.cut.tiles > 0},
                                                 precision);
  const Precision rounding = input_rounding(task.form.gate_up.coding, precision);
  const uint64_t assignments = uint64_t{task.tokens} * task.top_k;
  const ExpertTiles tiles = make_expert_tiles(stream, task, scratch, tile);
  return {.gate_up = {.table = task.table,
                      .tiles = tiles,
                      .form = {task.form.gate_up},
                      .x = task.x,
                      .rounded = task.rounded_x.values != nullptr
                                     ? task.rounded_x
                                     : lay_out_rounded(scratch.rounded_x, task.tokens, hidden, rounding),
                      .slots = task.top_k,
                      .y = {.data = scratch.inner, .stride = inner},
                      .limit = task.form.limit},
          .down = {.table = task.table,
                   .tiles = tiles,
                   .form = {task.form.down},
                   .x = {.data = scratch.inner, .stride = inner},
                   .rounded = lay_out_rounded(scratch.rounded_inner, assignments, inner, rounding),
                   .slots = 1,
                   .y = task.cut.tiles > 0 ? task.parts : RowsAt<float>{.data = scratch.parts, .stride = hidden},
                   .limit = kNoLimit},
          .sum = {.y = task.y,
                  .parts = {.data = scratch.parts, .stride = hidden},
                  .weights = task.weights,
                  .rows = task.tokens,
                  .cols = hidden,
                  .top_k = task.top_k,
                  .more = task.more,
                  .adds = task.adds}};
}

// All routed experts of a few tokens in one launch: gate-up-SiLU, down, and the sum in the router's order, each value
// summed as in the separate launches.
//
// If inputs are rounded, 128 values of a tile are rounded by the last of the gate and up blocks that write them.
//
// A block draws a ticket, which determines its work:
//
//   ticket    0 ..                 gate and up of the shared expert, if there is one
//             then                 gate and up of tile 0, of tile 1, ..
//             then                 down of tile 0, of tile 1, .., once the tile's gate and up are finished
//             then                 down of the shared expert, once its gate and up are finished
//             the rest             nothing: the routing has fewer tiles than the worst
//
// The last of a token's blocks for some rows of down sums these rows over the slots, unless parts are wanted; the sum
// does not depend on which block that is. While a block of down waits, it prefetches its first weights into the L2
// cache, so that memory does not idle between the two products.
//
// No deadlock: running blocks draw tickets in ascending order, and a GPU does not preempt a running block for another
// of its launch. A block of down waits only for blocks of gate and up; their tickets are smaller, so all of them run or
// have ended, in whatever order the GPU starts blocks and however few fit; and they do not wait for other blocks. A
// waiting thread sleeps, and the others of its block wait at a barrier: they occupy a multiprocessor, but not its
// cycles.
//
// Counters are zero before a launch; the last block to finish zeroes them again, so that every run of a recorded launch
// finds them zero.

struct FusedTask {
  ExpertSteps steps;
  SharedProduct shared_gate_up = {};  // if shape.shared.gate_up_blocks is not 0
  SharedProduct shared_down = {};
  uint32_t gate_up_staged;  // as in the separate launches
  uint32_t down_staged;
  uint32_t assignments;
  bool gives_parts = false;  // results stay in separate rows, by assignment, and are not summed
  bool overlaps = true;      // the launch overlaps with the previous one
  FusedShape shape;
  FusedCounters counters;
};

/// If the stream waits for copies of weights, the launch does not overlap with the previous one.
template <class Kernel>
void launch_fused(gpu::Stream& stream, Kernel kernel, const FusedTask& task) {
  if (!task.overlaps) return gpu::launch(stream, task.shape.launch, kernel, task);
  gpu::launch_overlapping(stream, task.shape.launch, kernel, task);
}

// Shared memory words that the threads of a block share. The first words overlap with the inputs.
inline constexpr unsigned kTicketWord = 0;
inline constexpr unsigned kIsCompleteWord = 0;
inline constexpr unsigned kIsLastWords = 0;  // one for each token of the tile
inline constexpr unsigned kDoneWord = kIsLastWords + kLargestFusedTile;

/// Prefetches the first weights of down for a block's first rows.
template <class Tiles>
__device__ __forceinline__ void prefetch_down(const Matrix& form, const void* codes, uint32_t group) {
  constexpr uint32_t kMaxBytes = 32 << 10;  // per block; a whole GPU's take at most half of an H100's cache
  const uint32_t rows = Tiles::rows_of_down();
  prefetch_rows<typename Tiles::Weights>(form, codes, group * rows, rows, kMaxBytes);
}

/// Called after the block has written its rows of down for some tokens. Sums those of every token that now has all
/// parts.
template <class Tiles, class TokenAt>
__device__ void add_up_parts(const FusedTask& task, uint32_t count, const TokenAt& token_at, uint32_t group) {
  const WeightedSumTask& sum = task.steps.sum;
  const uint32_t all = sum.top_k + (task.shape.shared.gate_up_blocks == 0 ? 0 : 1);
  auto* is_last = gpu::shared_memory<uint32_t>() + kIsLastWords;
  if (gpu::thread_index() < count) {
    uint32_t* parts = task.counters.down + token_at(gpu::thread_index()) * task.shape.down_blocks + group;
    is_last[gpu::thread_index()] = gpu::count_up(parts) == all - 1 ? 1 : 0;
  }
  gpu::block_barrier();  // is_last is stored, and other blocks' parts are visible
  const uint32_t rows_of_block = Tiles::rows_of_down();
  for (uint32_t i = 0; i < count; ++i) {
    if (is_last[i] == 0) continue;
    for (uint64_t first = uint64_t{group} * rows_of_block; first < sum.cols;
         first += uint64_t{task.shape.down_blocks} * rows_of_block) {
      const uint64_t col = first + gpu::thread_index();
      if (gpu::thread_index() < rows_of_block && col < sum.cols) sum_weighted(sum, token_at(i), col);
    }
  }
}

/// Counts this block as done; the last one zeroes all counters.
__device__ inline void finish_counting(const FusedCounters& counters) {
  auto* done = gpu::shared_memory<uint32_t>() + kDoneWord;
  if (gpu::thread_index() == 0) *done = gpu::count_up(counters.done);
  gpu::block_barrier();  // the count is stored
  if (*done != gpu::grid_blocks().x - 1) return;
  for (uint32_t i = gpu::thread_index(); i < counters.size; i += gpu::block_threads())
    counters.ticket[i] = 0;
}

/// A block of gate and up.
template <class Tiles>
__device__ __forceinline__ void run_gate_up(const FusedTask& task, uint32_t block) {
  const ExpertProduct& gate_up = task.steps.gate_up;
  const uint32_t index = block / task.shape.gate_up_blocks;
  const RowTurns turns{block % task.shape.gate_up_blocks, task.shape.gate_up_blocks};
  const TileAt tile = find_tile(gate_up.tiles, index);
  Tiles::template multiply<GateUp>(gate_up, tile, turns, task.gate_up_staged, [] {});
  gpu::block_barrier();  // all of the block's values are written
  Tiles::round_inner(task, index, tile, turns);
  if (gpu::thread_index() == 0) gpu::count_up(task.counters.gate_up + index);
}

/// A block of down.
template <class Tiles>
__device__ __forceinline__ void run_down(const FusedTask& task, uint32_t block) {
  const ExpertProduct& down = task.steps.down;
  const uint32_t index = block / task.shape.down_blocks;
  const RowTurns turns{block % task.shape.down_blocks, task.shape.down_blocks};
  const TileAt tile = find_tile(down.tiles, index);
  Tiles::template multiply<Down>(down, tile, turns, task.down_staged, [&] {
    prefetch_down<Tiles>(down.form, down.table[tile.expert].down[kCodes], turns.first);
    if (gpu::thread_index() == 0) gpu::wait_for_count(task.counters.gate_up + index, task.shape.gate_up_blocks);
    gpu::block_barrier();  // its input is visible
  });
  gpu::block_barrier();  // all of the block's values are written, and the inputs are no longer read
  if (task.gives_parts) return;
  const auto token_at = [&](uint32_t i) { return assignment_of(down.tiles, tile, i) / task.steps.sum.top_k; };
  add_up_parts<Tiles>(task, tile.count, token_at, turns.first);
  gpu::block_barrier();  // the block has finished counting tokens
}

/// Same for the shared expert, whose count follows those of the tiles.
template <class Tiles>
__device__ __forceinline__ void run_shared_gate_up(const FusedTask& task, uint32_t block) {
  const RowTurns turns{block, task.shape.shared.gate_up_blocks};
  Tiles::template multiply_shared<GateUp>(task.shared_gate_up, turns, [] {});
  gpu::block_barrier();  // all of the block's values are written
  Tiles::round_shared_inner(task, turns);
  if (gpu::thread_index() == 0) gpu::count_up(task.counters.gate_up + task.shape.tiles);
}
template <class Tiles>
__device__ __forceinline__ void run_shared_down(const FusedTask& task, uint32_t block) {
  const Matrix& down = task.shared_down.matrices[0];
  Tiles::template multiply_shared<Down>(task.shared_down, {block, task.shape.down_blocks}, [&] {
    prefetch_down<Tiles>(down, down.planes[kCodes], block);
    if (gpu::thread_index() == 0)
      gpu::wait_for_count(task.counters.gate_up + task.shape.tiles, task.shape.shared.gate_up_blocks);
    gpu::block_barrier();  // its input is visible
  });
  gpu::block_barrier();  // all of the block's values are written, and the inputs are no longer read
  add_up_parts<Tiles>(
      task, task.shared_down.tokens, [](uint32_t i) { return i; }, block);
  gpu::block_barrier();  // the block has finished counting tokens
}

/// Runs one block. Tiles computes the products of one tile:
///   multiply<Product>(product, tile, turns, staged, before_inputs): calls before_inputs() before it reads inputs, and
///     has a barrier before it writes to their place in shared memory, which overlaps with the words
///   multiply_shared<Product>(product, turns, before_inputs): same for a shared expert
///   round_inner(task, index, tile, turns): rounds what this and other blocks have written of a tile's inner values
///   round_shared_inner(task, turns): same for the shared expert's
///   Weights: the storage type; rows_of_gate_up(), rows_of_down(): matrix rows that a block takes at once, for down at
///     most its number of threads
template <class Tiles>
__device__ void run_fused_block(const FusedTask& task) {
  auto* words = gpu::shared_memory<uint32_t>();
  gpu::launch_dependents();
  if (gpu::block_index().x < task.shape.shared.gate_up_blocks) {  // may be used by any block
    const Matrix& gate = task.shared_gate_up.matrices[0];
    prefetch_rows<typename Tiles::Weights>(gate, gate.planes[kCodes], gpu::block_index().x * Tiles::rows_of_gate_up(),
                                           Tiles::rows_of_gate_up(), kEarlyBytes);
  }
  gpu::griddepcontrol_wait();  // also for the counters, which the previous launch may be about to zero
  if (gpu::thread_index() == 0) words[kTicketWord] = gpu::take_ticket(task.counters.ticket);
  gpu::block_barrier();  // the ticket is stored
  const uint32_t ticket = words[kTicketWord];
  const uint32_t tiles = task.steps.down.tiles.tiles == nullptr ? task.assignments : *task.steps.down.tiles.tile_count;
  const uint32_t gate_ups = task.shape.shared.gate_up_blocks;
  const uint32_t downs = gate_ups + tiles * task.shape.gate_up_blocks;
  const uint32_t shared_downs = downs + tiles * task.shape.down_blocks;
  if (ticket < gate_ups) {
    run_shared_gate_up<Tiles>(task, ticket);
  } else if (ticket < downs) {
    run_gate_up<Tiles>(task, ticket - gate_ups);
  } else if (ticket < shared_downs) {
    run_down<Tiles>(task, ticket - downs);
  } else if (gate_ups > 0 && ticket - shared_downs < task.shape.down_blocks) {
    run_shared_down<Tiles>(task, ticket - shared_downs);
  }
  finish_counting(task.counters);
}

}  // namespace dspack::kernels::cuda::device
