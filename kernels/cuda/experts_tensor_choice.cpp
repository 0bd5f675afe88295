#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/experts_tensor.h"
#include "kernels/cuda/linear_tensor.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr uint64_t kTileTokens = 8;
constexpr uint64_t kSharedBytes = 48 << 10;  // two blocks share the smallest multiprocessor's memory
constexpr uint64_t kScaleColumns = 128;      // that share an input's scale
constexpr uint64_t kRowPadding = 16;         // bytes: eight input rows begin at different banks
constexpr uint64_t kMostBlocks = 65'535;     // in y

}  // namespace

bool experts_fit_tensor_cores(const ExpertForm& form) {
  return fits_tensor_cores(form.gate_up) && fits_tensor_cores(form.down) && form.gate_up.coding == form.down.coding;
}

ExpertsTensorChoice choose_experts_tensor(const MatrixForm& form, uint32_t outputs_of_warp, uint32_t tokens,
                                          uint64_t tiles) {
  const uint32_t tile = tensor_tile(tokens);
  ExpertsTensorChoice choice;
  choice.token_tiles = static_cast<unsigned>(tile / kTileTokens);
  const unsigned warps = expert_tensor_warps(choice.token_tiles);
  const uint64_t columns = round_up(form.in, kScaleColumns);
  const auto bytes_of = [&](uint64_t staged) {
    return tile * (staged * 2 + kRowPadding + staged / kScaleColumns * sizeof(float));
  };
  uint64_t staged = kScaleColumns;
  while (staged < columns && bytes_of(staged + kScaleColumns) <= kSharedBytes)
    staged += kScaleColumns;
  choice.staged_columns = static_cast<uint32_t>(staged);
  const uint64_t row_groups = ceil_div(form.out, uint64_t{outputs_of_warp} * warps);
  choice.shape.grid_x = narrow<unsigned>(tiles);
  choice.shape.grid_y = static_cast<unsigned>(std::min(row_groups, kMostBlocks));
  choice.shape.threads = warps * kWarp;
  choice.shape.shared_bytes = static_cast<unsigned>(bytes_of(staged));
  return choice;
}

}  // namespace dspack::kernels::cuda
