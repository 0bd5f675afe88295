#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/elementwise.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr uint32_t kMostBlocks = 65'535;  // in y

}  // namespace

gpu::LaunchShape choose_rows_launch(uint32_t rows, uint32_t cols) {
  constexpr unsigned kThreads = 256;
  const auto threads = static_cast<unsigned>(std::min<uint64_t>(kThreads, round_up(std::max(cols, 1U), kWarp)));
  return {.grid_x = static_cast<unsigned>(ceil_div(std::max(cols, 1U), threads)),
          .grid_y = std::min(rows, kMostBlocks),
          .threads = threads};
}

gpu::LaunchShape choose_norm_launch(uint32_t rows, uint32_t cols) {
  // A thread for four values of a long row: one token's norm is a matter of latency.
  constexpr unsigned kMostThreads = 1024;
  const uint64_t threads = std::clamp<uint64_t>(round_up(ceil_div(cols, 4), kWarp), kWarp, kMostThreads);
  return {.grid_x = 1,
          .grid_y = std::min(rows, kMostBlocks),
          .threads = static_cast<unsigned>(threads),
          .shared_bytes = static_cast<unsigned>(threads / kWarp * sizeof(float))};
}

}  // namespace dspack::kernels::cuda
