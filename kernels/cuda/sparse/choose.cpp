#include "kernels/cuda/sparse/choose.h"

#include <algorithm>

#include "format/base/size.h"

namespace dspack::kernels::cuda {
namespace {

constexpr uint64_t kOrderBytes = 32ULL << 20;  // most bytes per run, unless one row needs more
constexpr uint32_t kMaxScoreBlocks = 512;      // in x, each takes every 512th tile; four fit a multiprocessor
constexpr uint32_t kWantedScoreBlocks = 512;   // keep a large GPU busy
constexpr uint32_t kMaxRowsOfBlock = 8;

uint32_t tiles_of(uint32_t position_limit) {
  return static_cast<uint32_t>(ceil_div(std::max(position_limit, 1U), kScorePositions));
}

}  // namespace

ChooseRuns choose_runs(uint32_t rows, uint32_t position_limit) {
  ChooseRuns runs;
  const uint64_t stride = round_up(std::max(position_limit, 1U), kSelectChunk);
  const uint64_t row_bytes = kMaxListed * sizeof(uint64_t) + stride * sizeof(uint32_t) + stride / 8;
  const uint64_t most_rows = std::clamp<uint64_t>(kOrderBytes / row_bytes, 1, kMaxChooseRows);
  runs.order_stride = static_cast<uint32_t>(stride);
  runs.rows_a_run = static_cast<uint32_t>(std::min<uint64_t>(most_rows, std::max(rows, 1U)));
  // Monotonic in rows and positions, so that the scratch of the largest call serves all.
  runs.scratch_bytes = std::max(row_bytes, std::min(row_bytes * std::min(rows, kMaxChooseRows), kOrderBytes));
  return runs;
}

bool fits_tensor_scores(uint32_t dim, const gpu::Properties& properties) {
  constexpr unsigned kFirstWithBf16 = 8;
  return dim % 16 == 0 && dim <= kScoreKeyPanel && properties.major >= kFirstWithBf16;
}

uint32_t score_rows_of_block(uint32_t rows, uint32_t position_limit) {
  const uint64_t blocks = uint64_t{std::min(tiles_of(position_limit), kMaxScoreBlocks)} * rows;
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks / kWantedScoreBlocks, 1, kMaxRowsOfBlock));
}

gpu::LaunchShape choose_scores_launch(const ChooseTask& task, uint32_t rows) {
  const uint32_t heads = task.heads > kScoreHeads / 2 ? kScoreHeads : kScoreHeads / 2;
  const uint64_t floats = uint64_t{kScorePositions} * score_key_stride(task.keys.in) + 2 * heads * kScoreQueryStride;
  const uint64_t of_tensor = uint64_t{kScorePositions + kScoreHeads} * tensor_score_row_bytes(task.keys.in);
  return {.grid_x = std::min(tiles_of(task.key_limit()), kMaxScoreBlocks),
          .grid_y = static_cast<unsigned>(ceil_div(rows, score_rows_of_block(rows, task.key_limit()))),
          .threads = kScoreThreads,
          .shared_bytes = static_cast<unsigned>(task.on_tensor_cores ? of_tensor : floats * sizeof(float))};
}

}  // namespace dspack::kernels::cuda
