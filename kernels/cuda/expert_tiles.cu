// One block sorts: a warp counts the assignments of an expert, one warp adds the counts up, a warp writes down an
// expert's assignments and tiles. Every place follows from counts, so nothing depends on which thread is first.
#include "kernels/cuda/expert_tiles.h"

#include <dspack_gpu.h>

namespace dspack::kernels::cuda {
namespace {

struct TilesTask {
  const uint32_t* ids;
  uint32_t assignments;
  uint32_t experts;
  uint32_t tile;
  uint32_t* order;
  ExpertTile* tiles;
  uint32_t* tile_count;
};

__device__ __forceinline__ unsigned count_bits(unsigned bits) {
  bits -= (bits >> 1U) & 0x55555555U;
  bits = (bits & 0x33333333U) + ((bits >> 2U) & 0x33333333U);
  bits = (bits + (bits >> 4U)) & 0x0f0f0f0fU;
  return bits * 0x01010101U >> 24U;
}

/// Which of the 32 assignments from `first` on go to an expert, as bits.
__device__ __forceinline__ unsigned match_assignments(const TilesTask& task, uint32_t first, uint32_t expert) {
  const uint32_t mine = first + gpu::lane_index();
  return gpu::ballot(mine < task.assignments && task.ids[mine] == expert);
}

/// One warp: values[i] becomes the sum of those before it; values[count] that of all.
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
      task.order[place + found + count_bits(matches & ((1U << lane) - 1))] = first + lane;
    }
    found += count_bits(matches);
  }
  for (uint32_t n = lane; n * task.tile < count; n += gpu::kWarpThreads) {
    const uint32_t left = count - n * task.tile;
    tiles[n] = {expert, place + n * task.tile, left < task.tile ? left : task.tile, 0};
  }
}

__global__ void tiles_kernel(TilesTask task) {
  auto* places = gpu::shared_memory<uint32_t>();
  uint32_t* tile_places = places + task.experts + 1;
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint32_t expert = gpu::warp_index(); expert < task.experts; expert += warps) {
    uint32_t count = 0;
    for (uint32_t first = 0; first < task.assignments; first += gpu::kWarpThreads)
      count += count_bits(match_assignments(task, first, expert));
    if (gpu::lane_index() == 0) {
      places[expert] = count;
      tile_places[expert] = (count + task.tile - 1) / task.tile;
    }
  }
  gpu::block_barrier();  // counts are there
  if (gpu::warp_index() == 0) {
    add_up(places, task.experts);
    add_up(tile_places, task.experts);
  }
  gpu::block_barrier();  // places are there
  for (uint32_t expert = gpu::warp_index(); expert < task.experts; expert += warps) {
    write_expert(task, expert, places[expert], places[expert + 1] - places[expert], task.tiles + tile_places[expert]);
  }
  if (gpu::thread_index() == 0) *task.tile_count = tile_places[task.experts];
}

}  // namespace

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
                        .assignments = task.tokens * task.top_k,
                        .experts = task.experts,
                        .tile = tile,
                        .order = scratch.order,
                        .tiles = scratch.tiles,
                        .tile_count = scratch.tile_count};
  gpu::launch(stream, choose_expert_tiles_launch(task.experts), tiles_kernel, tiles);
  return {.tiles = scratch.tiles, .tile_count = scratch.tile_count, .order = scratch.order, .ids = nullptr};
}

}  // namespace dspack::kernels::cuda
