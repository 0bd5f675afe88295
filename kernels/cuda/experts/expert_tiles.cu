// Every place follows from counts, so the result does not depend on the order of threads.
//
// Few assignments: one block with a thread per assignment, whose place is the number of assignments before it. A
// prompt's: one launch in which a warp counts the assignments of an expert, and one in which each block sums all counts
// and each warp writes an expert's assignments and tiles.
#include "kernels/cuda/experts/expert_tiles.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/weight_stream.cuh"

namespace dspack::kernels::cuda {
namespace {

struct TilesTask {
  const uint32_t* ids;
  const uint32_t* entries;  // entry of each expert, null: ids are entries; kNoEntry: the assignment is left out
  uint32_t assignments;
  uint32_t experts;
  uint32_t tile;
  uint32_t* order;
  ExpertTile* tiles;
  uint32_t* tile_count;
  uint32_t* counts;  // assignments per expert; only for many assignments
};

constexpr uint32_t kFewAssignments = kMaxHeldAssignments;

/// Calls visit(value, index) for `count` words, a multiple of four, in shared memory.
template <class Visit>
__device__ __forceinline__ void for_each_word(const uint32_t* words, uint32_t count, Visit visit) {
#pragma unroll 2
  for (uint32_t at = 0; at < count; at += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(words + at);
    visit(four.x, at);
    visit(four.y, at + 1);
    visit(four.z, at + 2);
    visit(four.w, at + 3);
  }
}

__global__ void __launch_bounds__(kFewAssignments) few_tiles_kernel(TilesTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t mine = gpu::thread_index();
  uint32_t expert = mine < task.assignments ? task.ids[mine] : kNoEntry;
  if (task.entries != nullptr && expert != kNoEntry) expert = task.entries[expert];
  const bool is_there = expert != kNoEntry;
  auto* experts = gpu::shared_memory<uint32_t>();       // by assignment
  uint32_t* is_first = experts + gpu::block_threads();  // by place: 1 if a tile begins there
  const uint32_t words = (task.assignments + 3) / 4 * 4;
  experts[mine] = expert;
  is_first[mine] = 0;
  gpu::block_barrier();  // all experts are stored
  uint32_t lower = 0;    // assignments to lower experts
  uint32_t before = 0;   // to this expert, before mine
  uint32_t all = 0;      // to this expert
  for_each_word(experts, words, [&](uint32_t other, uint32_t at) {
    if (other < expert) ++lower;
    if (other == expert) ++all;
    if (other == expert && at < mine) ++before;
  });
  const uint32_t place = lower + before;
  const bool begins = before < task.tile ? before == 0 : before % task.tile == 0;
  if (is_there) {
    task.order[place] = mine;
    is_first[place] = begins ? 1 : 0;
  }
  gpu::block_barrier();  // the tiles' beginnings are stored
  uint32_t tile = 0;     // index of this thread's tile
  uint32_t tiles = 0;
  for_each_word(is_first, words, [&](uint32_t flag, uint32_t at) {
    if (at < place) tile += flag;
    tiles += flag;
  });
  if (mine == 0) *task.tile_count = tiles;
  if (is_there && begins) task.tiles[tile] = {expert, place, all - before < task.tile ? all - before : task.tile, 0};
}

/// Bit mask of the 32 assignments from `first` on that go to an expert.
__device__ __forceinline__ unsigned match_assignments(const TilesTask& task, uint32_t first, uint32_t expert) {
  const uint32_t mine = first + gpu::lane_index();
  return gpu::ballot(mine < task.assignments && task.ids[mine] == expert);
}

/// Exclusive prefix sum in place; values[count] becomes the total. Call with one warp.
__device__ void add_up(uint32_t* values, uint32_t count) {
  const unsigned lane = gpu::lane_index();
  uint32_t before = 0;
  for (uint32_t first = 0; first < count; first += gpu::kWarpThreads) {
    const uint32_t mine = first + lane < count ? values[first + lane] : 0;
    uint32_t sum = mine;
    for (unsigned apart = 1; apart < gpu::kWarpThreads; apart *= 2) {
      const uint32_t other = gpu::shuffle(sum, lane >= apart ? lane - apart : lane);
      if (lane >= apart) sum += other;
    }
    if (first + lane < count) values[first + lane] = before + sum - mine;
    before += gpu::shuffle(sum, gpu::kWarpThreads - 1);
  }
  if (lane == 0) values[count] = before;
}

__device__ void write_expert(const TilesTask& task, uint32_t expert, uint32_t place, uint32_t count,
                             ExpertTile* tiles) {
  const unsigned lane = gpu::lane_index();
  for (uint32_t first = 0, found = 0; found < count; first += gpu::kWarpThreads) {
    const unsigned matches = match_assignments(task, first, expert);
    if ((matches >> lane & 1U) != 0) {
      task.order[place + found + gpu::popc(matches & ((1U << lane) - 1))] = first + lane;
    }
    found += gpu::popc(matches);
  }
  for (uint32_t n = lane; n * task.tile < count; n += gpu::kWarpThreads) {
    const uint32_t left = count - n * task.tile;
    tiles[n] = {expert, place + n * task.tile, left < task.tile ? left : task.tile, 0};
  }
}

/// Calls `visit` in every warp for the experts assigned to that warp.
template <class Visit>
__device__ __forceinline__ void for_each_expert(const TilesTask& task, const Visit& visit) {
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint32_t expert = gpu::block_index().x * warps + gpu::warp_index(); expert < task.experts;
       expert += gpu::grid_blocks().x * warps)
    visit(expert);
}

/// The number of assignments, in every lane of the warp.
__device__ __forceinline__ uint32_t count_assignments(const TilesTask& task, uint32_t expert) {
  uint32_t count = 0;
  for (uint32_t first = 0; first < task.assignments; first += gpu::kWarpThreads)
    count += gpu::popc(match_assignments(task, first, expert));
  return count;
}

__global__ void counts_kernel(TilesTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  for_each_expert(task, [&](uint32_t expert) {
    const uint32_t count = count_assignments(task, expert);
    if (gpu::lane_index() == 0) task.counts[expert] = count;
  });
}

__global__ void tiles_kernel(TilesTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  auto* places = gpu::shared_memory<uint32_t>();
  uint32_t* tile_places = places + task.experts + 1;
  for (uint32_t expert = gpu::thread_index(); expert < task.experts; expert += gpu::block_threads()) {
    places[expert] = task.counts[expert];
    tile_places[expert] = (task.counts[expert] + task.tile - 1) / task.tile;
  }
  gpu::block_barrier();  // the counts are loaded
  if (gpu::warp_index() == 0) add_up(places, task.experts);
  if (gpu::warp_index() == gpu::block_threads() / gpu::kWarpThreads - 1) add_up(tile_places, task.experts);
  gpu::block_barrier();  // the places are stored
  for_each_expert(task, [&](uint32_t expert) {
    write_expert(task, expert, places[expert], places[expert + 1] - places[expert], task.tiles + tile_places[expert]);
  });
  if (gpu::block_index().x == 0 && gpu::thread_index() == 0) *task.tile_count = tile_places[task.experts];
}

constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kRowsOfWarp = 2;
constexpr unsigned kRowsOfBlock = kWarpsOfBlock * kRowsOfWarp;
// Several blocks share a multiprocessor's memory (100 KiB on the smallest), and each hides the others' barriers.
constexpr uint64_t kSharedBytes = 32 << 10;
// Weights per block that make staging the input worthwhile, and blocks that keep every current card busy (132 to 192
// multiprocessors, several blocks each).
constexpr uint64_t kEnoughWeightBytes = 128 << 10;
constexpr uint64_t kEnoughBlocks = 768;
constexpr uint64_t kMaxBlocks = 65'535;  // in y

/// Turns of a block, each with the next group of rows.
uint64_t turns_for(uint64_t row_groups, uint64_t turn_bytes, uint64_t tiles) {
  uint64_t turns = 1;
  while (turns * turn_bytes < kEnoughWeightBytes && tiles * ceil_div(row_groups, 2 * turns) >= kEnoughBlocks)
    turns *= 2;
  return std::max(turns, ceil_div(row_groups, kMaxBlocks));
}

}  // namespace

gpu::LaunchShape choose_expert_tiles_launch(uint32_t experts, uint32_t assignments) {
  if (assignments <= kFewAssignments) {
    const auto threads = static_cast<unsigned>(round_up(std::max(assignments, 1U), gpu::kWarpThreads));
    return {.threads = threads, .shared_bytes = static_cast<unsigned>(2 * threads * sizeof(uint32_t))};
  }
  constexpr uint64_t kMaxWarps = 8;  // one expert each
  const uint64_t warps = std::clamp<uint64_t>(experts, 1, kMaxWarps);
  const uint64_t shared_bytes = 2 * (uint64_t{experts} + 1) * sizeof(uint32_t);
  return {.grid_x = static_cast<unsigned>(std::max<uint64_t>(ceil_div(experts, warps), 1)),
          .threads = static_cast<unsigned>(warps) * gpu::kWarpThreads,
          .shared_bytes = launch_count(shared_bytes)};
}

uint64_t expert_tiles_of(const ExpertsTask& task, uint32_t tile) {
  if (task.cut.tiles > 0) return task.cut.tiles;
  if (task.tokens == 1) return task.top_k;
  return most_expert_tiles(uint64_t{task.tokens} * task.top_k, task.experts, tile);
}

ExpertsChoice choose_experts(const MatrixForm& form, uint32_t matrices, uint32_t tokens, uint64_t tiles) {
  ExpertsChoice choice;
  choice.tokens = tokens <= 2 ? tokens : kExactTokens;
  const uint32_t per_chunk = codes_in_16_bytes(form.coding);
  const uint64_t group_bytes = uint64_t{gpu::kWarpThreads} * per_chunk * sizeof(float);
  const uint64_t groups = ceil_div(form.in, uint64_t{gpu::kWarpThreads} * per_chunk);
  choice.staged_groups = static_cast<uint32_t>(
      std::clamp<uint64_t>(groups * choice.tokens, choice.tokens, std::max<uint64_t>(kSharedBytes / group_bytes, 1)));
  const uint64_t row_groups = ceil_div(form.out, kRowsOfBlock);
  const uint64_t turn_bytes = uint64_t{kRowsOfBlock} * matrices * code_bytes(form.coding, form.in);
  choice.shape.grid_x = launch_count(tiles);
  choice.shape.grid_y = static_cast<unsigned>(ceil_div(row_groups, turns_for(row_groups, turn_bytes, tiles)));
  choice.shape.threads = kWarpsOfBlock * gpu::kWarpThreads;
  choice.shape.shared_bytes = static_cast<unsigned>(choice.staged_groups * group_bytes) +
                              device::stream_bytes(choice.shape.threads, exact_pieces(choice.tokens));
  return choice;
}

ExpertTiles make_expert_tiles(gpu::Stream& stream, const ExpertsTask& task, const ExpertsScratch& scratch,
                              uint32_t tile) {
  if (task.cut.tiles > 0) {
    return {.tiles = reinterpret_cast<const ExpertTile*>(task.cut.words + 1),
            .tile_count = task.cut.words,
            .order = task.cut.words + task.cut.order_at,
            .ids = nullptr};
  }
  if (task.tokens == 1) return {.ids = task.ids};
  const TilesTask tiles{.ids = task.ids,
                        .entries = nullptr,
                        .assignments = task.tokens * task.top_k,
                        .experts = task.experts,
                        .tile = tile,
                        .order = scratch.order,
                        .tiles = scratch.tiles,
                        .tile_count = scratch.tile_count,
                        .counts = scratch.counts};
  const gpu::LaunchShape shape = choose_expert_tiles_launch(task.experts, tiles.assignments);
  if (tiles.assignments <= kFewAssignments) {
    gpu::launch_overlapping(stream, shape, few_tiles_kernel, tiles);
  } else {
    gpu::LaunchShape counting = shape;
    counting.shared_bytes = 0;
    gpu::launch_overlapping(stream, counting, counts_kernel, tiles);
    gpu::launch_overlapping(stream, shape, tiles_kernel, tiles);
  }
  return {.tiles = scratch.tiles, .tile_count = scratch.tile_count, .order = scratch.order, .ids = nullptr};
}

static_assert(sizeof(ExpertTile) == 4 * sizeof(uint32_t), "a tile is four words");

CutTiles cut_held_experts(gpu::Stream& stream, const HeldAssignments& held, uint32_t experts, uint32_t tile,
                          uint32_t* words) {
  DSPACK_CHECK(held.count <= kMaxHeldAssignments, "more assignments than one block cuts");
  const uint32_t tiles = launch_count(most_expert_tiles(held.count, experts, tile));
  const uint32_t order_at = 1 + 4 * tiles;
  gpu::launch_overlapping(stream, choose_expert_tiles_launch(experts, held.count), few_tiles_kernel,
                          TilesTask{.ids = held.ids,
                                    .entries = held.entries,
                                    .assignments = held.count,
                                    .experts = experts,
                                    .tile = tile,
                                    .order = words + order_at,
                                    .tiles = reinterpret_cast<ExpertTile*>(words + 1),
                                    .tile_count = words,
                                    .counts = nullptr});
  return {.words = words, .tiles = tiles, .order_at = order_at, .most = 0, .awaits_copies = false};
}

}  // namespace dspack::kernels::cuda
