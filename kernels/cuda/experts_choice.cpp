#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/expert_tiles.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kRowsOfWarp = 2;
constexpr unsigned kRowsOfBlock = kWarpsOfBlock * kRowsOfWarp;
// Several blocks of a multiprocessor share its memory (100 KiB on the smallest): each hides the others' barriers.
constexpr uint64_t kSharedBytes = 32 << 10;
// Weights that make up for staging the input, and blocks that keep every current card busy (132 to 192
// multiprocessors, several blocks each).
constexpr uint64_t kEnoughWeightBytes = 128 << 10;
constexpr uint64_t kEnoughBlocks = 768;
constexpr uint64_t kMostBlocks = 65'535;  // in y

/// Turns of a block, each with the next group of rows.
uint64_t turns_for(uint64_t row_groups, uint64_t turn_bytes, uint64_t tiles) {
  uint64_t turns = 1;
  while (turns * turn_bytes < kEnoughWeightBytes && tiles * ceil_div(row_groups, 2 * turns) >= kEnoughBlocks)
    turns *= 2;
  return std::max(turns, ceil_div(row_groups, kMostBlocks));
}

}  // namespace

uint64_t most_expert_tiles(uint64_t assignments, uint32_t experts, uint32_t tile) {
  // An expert's first assignment opens a tile; after that it takes `tile` of them to open another.
  if (assignments <= experts) return assignments;
  return experts + (assignments - experts) / tile;
}

ExpertsScratch lay_out_experts(void* scratch, const ExpertsShape& shape) {
  constexpr uint64_t kAlignment = 256;
  const uint64_t assignments = uint64_t{shape.rows} * shape.top_k;
  ExpertsScratch places;
  const auto add = [&]<class T>(T*& place, uint64_t count) {
    place = scratch == nullptr ? nullptr : reinterpret_cast<T*>(static_cast<std::byte*>(scratch) + places.size_bytes);
    places.size_bytes += round_up(count * sizeof(T), kAlignment);
  };
  add(places.inner, assignments * shape.inner);
  add(places.parts, assignments * shape.hidden);
  constexpr uint32_t kSmallestTile = 2;  // of those that are written down
  add(places.tiles, most_expert_tiles(assignments, shape.experts, kSmallestTile));
  add(places.tile_count, 1);
  add(places.order, assignments);
  return places;
}

uint64_t experts_scratch_bytes(const ExpertsShape& shape) {
  return lay_out_experts(nullptr, shape).size_bytes;
}

gpu::LaunchShape choose_expert_tiles_launch(uint32_t experts) {
  // A warp looks after several experts, one after the other.
  const auto warps = static_cast<unsigned>(std::clamp<uint64_t>(ceil_div(experts, 4), 1, 32));
  const uint64_t shared_bytes = 2 * (uint64_t{experts} + 1) * sizeof(uint32_t);
  return {.threads = warps * kWarp, .shared_bytes = narrow<unsigned>(shared_bytes)};
}

uint64_t expert_tiles_of(const ExpertsTask& task, uint32_t tile) {
  if (task.cut.tiles > 0) return task.cut.tiles;
  if (task.tokens == 1) return task.top_k;
  return most_expert_tiles(uint64_t{task.tokens} * task.top_k, task.experts, tile);
}

ExpertsChoice choose_experts(const MatrixForm& form, uint32_t matrices, uint32_t tokens, uint64_t tiles) {
  ExpertsChoice choice;
  // Codings and layouts that are rare have one kernel, which serves any number of tokens.
  choice.tokens = has_aligned_rows(form) && is_common(form.coding) && tokens <= 2 ? tokens : kExactTokens;
  const uint32_t per_chunk = codes_in_16_bytes(form.coding);
  const uint64_t group_bytes = uint64_t{kWarp} * per_chunk * sizeof(float);
  const uint64_t groups = ceil_div(form.in, uint64_t{kWarp} * per_chunk);
  choice.staged_groups = static_cast<uint32_t>(
      std::clamp<uint64_t>(groups * choice.tokens, choice.tokens, std::max<uint64_t>(kSharedBytes / group_bytes, 1)));
  const uint64_t row_groups = ceil_div(form.out, kRowsOfBlock);
  const uint64_t turn_bytes = uint64_t{kRowsOfBlock} * matrices * code_bytes(form.coding, form.in);
  choice.shape.grid_x = narrow<unsigned>(tiles);
  choice.shape.grid_y = static_cast<unsigned>(ceil_div(row_groups, turns_for(row_groups, turn_bytes, tiles)));
  choice.shape.threads = kWarpsOfBlock * kWarp;
  choice.shape.shared_bytes = static_cast<unsigned>(choice.staged_groups * group_bytes);
  return choice;
}

}  // namespace dspack::kernels::cuda
