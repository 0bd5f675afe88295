// What the kernels of routed experts share: which tile a block works on, what is multiplied, what becomes of the sums,
// and how all of it runs in one launch.
#pragma once

#include <limits>

#include "format/base/check.h"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/elementwise.cuh"
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
  RoundedRows rounded;  // x, unless products are exact
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

/// One step of a shared expert, for all tokens: shared_expert.cuh.
struct SharedProduct {
  Matrix matrices[2];  // gate and up, or down
  RowsAt<const float> x;
  RowsAt<float> y;
  uint32_t tokens;
  uint32_t warps_a_row;  // that share a matrix row
  /// Of each token's input, in shared memory at once: groups of 32 chunks, or for tensor cores columns.
  uint32_t staged;
  RoundedRows rounded;  // x, unless products are exact
};

/// What is to be done once the tiles are made.
struct ExpertSteps {
  ExpertProduct gate_up;
  ExpertProduct down;
  WeightedSumTask sum;
};

/// Makes the tiles, of at most `tile` assignments. Precondition: there are tokens.
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
                      .y = {.data = scratch.inner, .stride = inner}},
          .down = {.table = task.table,
                   .tiles = tiles,
                   .form = {task.form.down},
                   .x = {.data = scratch.inner, .stride = inner},
                   .rounded = lay_out_rounded(scratch.rounded_inner, assignments, inner, rounding),
                   .slots = 1,
                   .y = task.cut.tiles > 0 ? task.parts : RowsAt<float>{.data = scratch.parts, .stride = hidden}},
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
// summed as the separate launches sum it.
//
// Where inputs are rounded, the last of a tile's blocks of gate and up for some 128 values rounds these.
//
// A block draws a ticket, and the ticket says what it does:
//
//   ticket    0 ..                 gate and up of the shared expert, where there is one
//             then                 gate and up of tile 0, of tile 1, ..
//             then                 down of tile 0, of tile 1, .., where the tile's gate and up are finished
//             then                 down of the shared expert, likewise
//             the rest             nothing: the routing has fewer tiles than the worst
//
// The last of a token's blocks for some rows of down adds these rows up over the slots, unless parts are wanted; which
// block that is changes nothing about the sum. While a block of down waits, its first weights are on their way to the
// second-level cache, so that memory does not rest between the two products.
//
// Why nobody waits for ever: tickets are drawn by blocks that run, in ascending order, and a GPU takes no running block
// off a multiprocessor for another of its launch. A block of down waits only for blocks of gate and up; their tickets
// are smaller, so all of them run or have ended, whatever order the GPU starts blocks in and however few fit; and they
// themselves wait for nobody. A waiting thread sleeps, and others of its block wait at a barrier: they take a running
// block's place on the multiprocessor, not its cycles.
//
// Counters are zero before a launch; the last block to be done makes them zero again, so that a recorded launch finds
// them so each time.

struct FusedTask {
  ExpertSteps steps;
  SharedProduct shared_gate_up = {};  // where shape.shared.gate_up_blocks is not 0
  SharedProduct shared_down = {};
  uint32_t gate_up_staged;  // as the separate launches take it
  uint32_t down_staged;
  uint32_t assignments;
  bool gives_parts = false;  // what the experts give stays in rows of its own, by assignment: nothing is added up
  bool overlaps = true;      // the launch, with the one before
  FusedShape shape;
  FusedCounters counters;
};

/// Where weights come by copies that the stream waits for, the launch does not overlap with the one before.
template <class Kernel>
void launch_fused(gpu::Stream& stream, Kernel kernel, const FusedTask& task) {
  if (!task.overlaps) return gpu::launch(stream, task.shape.launch, kernel, task);
  gpu::launch_overlapping(stream, task.shape.launch, kernel, task);
}

// What the threads of a block tell each other, in shared memory. The first words are the inputs' place, too.
inline constexpr unsigned kTicketWord = 0;
inline constexpr unsigned kIsCompleteWord = 0;
inline constexpr unsigned kIsLastWords = 0;  // for each token of the tile
inline constexpr unsigned kDoneWord = kIsLastWords + kLargestFusedTile;

/// Starts bringing the first weights of down for a block's first rows near.
template <class Tiles>
__device__ __forceinline__ void prefetch_down(const Matrix& form, const void* codes, uint32_t group) {
  constexpr uint32_t kMostBytes = 32 << 10;  // of a block; all of a GPU's then take half of an H100's cache at most
  const uint32_t rows = Tiles::rows_of_down();
  prefetch_rows<typename Tiles::Weights>(form, codes, group * rows, rows, kMostBytes);
}

/// The block has written its rows of down for some tokens. Adds up those of every token that has all its parts now.
template <class Tiles, class TokenAt>
__device__ void add_up_parts(const FusedTask& task, uint32_t count, const TokenAt& token_at, uint32_t group) {
  const WeightedSumTask& sum = task.steps.sum;
  const uint32_t all = sum.top_k + (task.shape.shared.gate_up_blocks == 0 ? 0 : 1);
  auto* is_last = gpu::shared_memory<uint32_t>() + kIsLastWords;
  if (gpu::thread_index() < count) {
    uint32_t* parts = task.counters.down + token_at(gpu::thread_index()) * task.shape.down_blocks + group;
    is_last[gpu::thread_index()] = gpu::count_up(parts) == all - 1 ? 1 : 0;
  }
  gpu::block_barrier();  // who is last is known, and others' parts can be read
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

/// Counts this block as done; the last one makes all counters zero.
__device__ inline void finish_counting(const FusedCounters& counters) {
  auto* done = gpu::shared_memory<uint32_t>() + kDoneWord;
  if (gpu::thread_index() == 0) *done = gpu::count_up(counters.done);
  gpu::block_barrier();  // whether it is the last is known
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
    gpu::block_barrier();  // its input can be read
  });
  gpu::block_barrier();  // all of the block's values are written, and nobody reads the inputs' place
  if (task.gives_parts) return;
  const auto token_at = [&](uint32_t i) { return assignment_of(down.tiles, tile, i) / task.steps.sum.top_k; };
  add_up_parts<Tiles>(task, tile.count, token_at, turns.first);
  gpu::block_barrier();  // all of the block's counting of tokens is done
}

/// The same of the shared expert, whose count stands behind those of the tiles.
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
    gpu::block_barrier();  // its input can be read
  });
  gpu::block_barrier();  // all of the block's values are written, and nobody reads the inputs' place
  add_up_parts<Tiles>(
      task, task.shared_down.tokens, [](uint32_t i) { return i; }, block);
  gpu::block_barrier();  // all of the block's counting of tokens is done
}

/// One block. Tiles: how a product of one tile is computed:
///   multiply<Product>(product, tile, turns, staged, before_inputs), which calls before_inputs() before it reads
///     inputs, and has a barrier before it writes to their place in shared memory, where the words are
///   multiply_shared<Product>(product, turns, before_inputs), likewise, of a shared expert
///   round_inner(task, index, tile, turns): rounds what the block and others have written of a tile's inner values
///   round_shared_inner(task, turns): likewise, of the shared expert's
///   Weights, how they are stored; rows_of_gate_up(), rows_of_down(): matrix rows that a block takes at once, of down
///   at most its threads
template <class Tiles>
__device__ void run_fused_block(const FusedTask& task) {
  auto* words = gpu::shared_memory<uint32_t>();
  gpu::let_next_begin();
  if (gpu::block_index().x < task.shape.shared.gate_up_blocks) {  // whoever will multiply with them
    const Matrix& gate = task.shared_gate_up.matrices[0];
    prefetch_rows<typename Tiles::Weights>(gate, gate.planes[kCodes], gpu::block_index().x * Tiles::rows_of_gate_up(),
                                           Tiles::rows_of_gate_up(), kEarlyBytes);
  }
  gpu::wait_for_previous();  // also for the counters, which the launch before may be about to make zero
  if (gpu::thread_index() == 0) words[kTicketWord] = gpu::take_ticket(task.counters.ticket);
  gpu::block_barrier();  // the ticket is there
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
