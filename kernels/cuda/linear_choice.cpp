#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/linear.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kRowsOfWarp = 2;
constexpr unsigned kMostTokens = 8;
// Several blocks of a multiprocessor share its memory (100 KiB on the smallest): each hides the others' barriers.
constexpr uint64_t kSharedBytes = 32 << 10;
constexpr unsigned kBlocksOfMultiprocessor = 4;
// Blocks that keep every current card busy: 132 to 192 multiprocessors. A constant and not the card's number, since a
// value's last bits hang on it.
constexpr uint32_t kEnoughBlocks = 256;

/// Few rows are shared by several warps, or most of the card would be idle; but each lane should have work.
unsigned warps_for(uint32_t out, uint64_t chunks) {
  unsigned warps = 1;
  while (warps < 4 && ceil_div(out, kRowsOfWarp * kWarpsOfBlock / warps) < kEnoughBlocks &&
         chunks >= uint64_t{4} * warps * kWarp)
    warps *= 2;
  return warps;
}

unsigned tokens_for(uint32_t rows) {
  unsigned tokens = 1;
  while (tokens < std::min(rows, kMostTokens))
    tokens *= 2;
  return tokens;
}

}  // namespace

LinearChoice choose_linear(Coding coding, uint32_t out, uint32_t in, uint32_t rows, unsigned multiprocessors) {
  const uint32_t per_chunk = codes_in_16_bytes(coding);
  const uint64_t chunks = ceil_div(in, per_chunk);
  LinearChoice choice;
  choice.warps_a_row = warps_for(out, chunks);
  choice.tokens = tokens_for(rows);
  // A tile is a whole number of turns of the lanes that share a row.
  const uint64_t group_bytes = uint64_t{kWarp} * per_chunk * sizeof(float) * choice.tokens;
  const uint64_t turn = choice.warps_a_row;
  const uint64_t groups = ceil_div(chunks, kWarp);
  const uint64_t that_fit = std::max<uint64_t>(1, kSharedBytes / (group_bytes * turn)) * turn;
  choice.tile_groups = static_cast<uint32_t>(std::min(that_fit, ceil_div(groups, turn) * turn));
  const auto row_groups = static_cast<uint32_t>(ceil_div(out, kRowsOfWarp * kWarpsOfBlock / choice.warps_a_row));
  const auto token_groups = static_cast<uint32_t>(ceil_div(rows, choice.tokens));
  constexpr uint32_t kMostBlocks = 65'535;  // in y; more follow in z
  choice.shape.grid_x = std::min(row_groups, std::max(1U, multiprocessors * kBlocksOfMultiprocessor));
  choice.shape.grid_y = std::min(token_groups, kMostBlocks);
  choice.shape.grid_z = static_cast<unsigned>(ceil_div(token_groups, kMostBlocks));
  choice.shape.threads = kWarpsOfBlock * kWarp;
  const uint64_t totals_bytes = uint64_t{kWarpsOfBlock} * kRowsOfWarp * choice.tokens * sizeof(float);
  choice.shape.shared_bytes = static_cast<unsigned>(choice.tile_groups * group_bytes + totals_bytes);
  return choice;
}

}  // namespace dspack::kernels::cuda
