#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/head_linear.h"
#include "kernels/cuda/head_linear_tiles.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kMostTokens = 8;
constexpr uint64_t kSharedBytes = 32 << 10;
constexpr uint64_t kMostBlocks = 65'535;  // in y; more follow in z

/// Blocks for every head and every group of tokens.
HeadLinearChoice spread(const HeadLinearTask& task, uint64_t blocks_a_head) {
  HeadLinearChoice choice;
  while (choice.tokens < std::min(task.rows, kMostTokens))
    choice.tokens *= 2;
  choice.blocks_a_head = static_cast<uint32_t>(blocks_a_head);
  const uint64_t token_groups = ceil_div(task.rows, choice.tokens);
  choice.shape.grid_x = static_cast<unsigned>(blocks_a_head * task.heads);
  choice.shape.grid_y = static_cast<unsigned>(std::min(token_groups, kMostBlocks));
  choice.shape.grid_z = static_cast<unsigned>(ceil_div(token_groups, kMostBlocks));
  choice.shape.threads = kHeadWarps * kWarp;
  return choice;
}

}  // namespace

HeadLinearChoice choose_head_linear(const HeadLinearTask& task) {
  HeadLinearChoice choice = spread(task, ceil_div(task.rows_used, uint64_t{kHeadWarps} * kHeadRowsOfWarp));
  const uint32_t group_values = kWarp * codes_in_16_bytes(task.weight.coding);
  const uint64_t group_bytes = uint64_t{group_values} * sizeof(float) * choice.tokens;
  const uint64_t that_fit = std::max<uint64_t>(1, kSharedBytes / group_bytes);
  choice.tile_groups = static_cast<uint32_t>(std::min(that_fit, ceil_div(task.weight.in, group_values)));
  choice.shape.shared_bytes = static_cast<unsigned>(choice.tile_groups * group_bytes);
  return choice;
}

HeadLinearChoice choose_head_linear_transposed(const HeadLinearTask& task) {
  const uint32_t block_columns = kWarp * codes_in_16_bytes(task.weight.coding);
  HeadLinearChoice choice = spread(task, ceil_div(task.weight.in, block_columns));
  // Inputs and the number of its row of scales for each matrix row; the sums of every warp for one token.
  const uint64_t inputs = uint64_t{kHeadRowTile} * (choice.tokens + 1);
  const uint64_t sums = uint64_t{kHeadWarps} * block_columns;
  choice.shape.shared_bytes = static_cast<unsigned>((inputs + sums) * sizeof(float));
  return choice;
}

}  // namespace dspack::kernels::cuda
