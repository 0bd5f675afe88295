#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/linear_tensor.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kTileRows = 16;
constexpr unsigned kTileTokens = 8;
constexpr unsigned kMostTokenTiles = 8;
constexpr uint32_t kEnoughBlocks = 256;      // as in linear_choice.cpp
constexpr uint64_t kSharedBytes = 48 << 10;  // of the inputs: two blocks share the smallest multiprocessor's memory
constexpr uint32_t kScaleColumns = 128;      // that share an input's scale
constexpr uint64_t kRowPadding = 16;         // bytes: eight input rows begin at different banks

uint32_t chunk_columns(Coding coding) {
  return 4 * codes_in_16_bytes(coding);
}

unsigned warps_for(uint32_t out, uint32_t chunks) {
  unsigned warps = 1;
  while (warps < kWarpsOfBlock && ceil_div(out, kTileRows * kWarpsOfBlock / warps) < kEnoughBlocks &&
         chunks >= 8 * warps)
    warps *= 2;
  return warps;
}

}  // namespace

bool fits_tensor_cores(const MatrixForm& weight) {
  if (!is_common(weight.coding)) return false;
  const bool whole_blocks =
      weight.block_out == 0 || weight.block_in >= weight.in || weight.block_in % chunk_columns(weight.coding) == 0;
  return has_aligned_rows(weight) && whole_blocks;
}

TensorChoice choose_linear_tensor(Coding coding, uint32_t out, uint32_t in, uint32_t rows) {
  const uint32_t chunk = chunk_columns(coding);
  TensorChoice choice;
  choice.warps_a_row = warps_for(out, static_cast<uint32_t>(ceil_div(in, chunk)));
  while (choice.token_tiles < kMostTokenTiles && choice.token_tiles * kTileTokens < rows)
    choice.token_tiles *= 2;
  choice.row_tiles = choice.token_tiles >= 4 ? 2 : 1;
  // A tile of columns is a whole number of turns of the warps that share a row, and of blocks that share a scale.
  const uint32_t turn = std::max(choice.warps_a_row * chunk, kScaleColumns);
  const uint64_t tokens = uint64_t{choice.token_tiles} * kTileTokens;
  const auto bytes_of = [&](uint64_t columns) {
    return tokens * (columns * 2 + kRowPadding + columns / kScaleColumns * sizeof(float));
  };
  choice.tile_columns = turn;
  while (choice.tile_columns < in && bytes_of(uint64_t{choice.tile_columns} + turn) <= kSharedBytes)
    choice.tile_columns += turn;
  // The sums of all warps but the first of each row lie where the inputs were.
  const uint64_t sums_bytes =
      uint64_t{kWarpsOfBlock} * kWarp * choice.row_tiles * choice.token_tiles * 4 * sizeof(float);
  const uint64_t row_groups = ceil_div(out, kTileRows * choice.row_tiles * kWarpsOfBlock / choice.warps_a_row);
  const uint64_t token_groups = ceil_div(rows, tokens);
  constexpr uint64_t kMostBlocks = 65'535;  // in y; more follow in z
  choice.shape.grid_x = static_cast<unsigned>(row_groups);
  choice.shape.grid_y = static_cast<unsigned>(std::min(token_groups, kMostBlocks));
  choice.shape.grid_z = static_cast<unsigned>(ceil_div(token_groups, kMostBlocks));
  choice.shape.threads = kWarpsOfBlock * kWarp;
  choice.shape.shared_bytes = static_cast<unsigned>(
      std::max(bytes_of(choice.tile_columns), choice.warps_a_row == 1 ? uint64_t{0} : sums_bytes));
  return choice;
}

}  // namespace dspack::kernels::cuda
