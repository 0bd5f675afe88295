// Position selection by the lightning indexer (ChooseArgs of kernels/ops.h) on CUDA, in two kernels for as many rows as
// fit the scratch:
//
//   scores   a block decodes 64 positions to FP32 in shared memory once, for all heads of some rows
//               row r, position j -> orders[r, j]: its score as an integer of the same order (device/order.cuh)
//            and counts[r, its first eleven bits] += 1
//   select   finds the lowest chosen order, digit by digit from counts, and lists the positions not below it
//
// A product of a query and a key is one chain of fma over the dimensions from zero, ascending, and is last multiplied
// by the key's scale; a thread adds weights * max(product, 0) of its heads by fma, ascending (heads with the same h %
// 8), and the eight threads of a position are added 4 apart, 2, 1. So a score depends only on its row and key.
//
// On tensor cores queries and keys are rounded to BF16 (exact for keys in FP8 and BF16), and a product is summed by
// tiles of 16 dimensions; the rest is the same.
//
// Rows that see no more positions than they may choose need no scores: all positions are listed. The grid follows from
// the largest possible position, so that one recorded graph serves every position; blocks of positions that no row sees
// return at once.
//
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked (kernels/checks.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

inline constexpr unsigned kFirstDigitBits = 11;  // leading bits of an order, which the scores' kernel counts
inline constexpr uint32_t kFirstCounts = 1U << kFirstDigitBits;
inline constexpr uint32_t kMaxListed = 4096;    // most positions left undecided by their first digit that a list holds
inline constexpr uint32_t kMaxChooseRows = 64;  // most rows of a run

/// Counters of one row of a run. Zero before a call and after it.
struct ChooseCounters {
  uint32_t of_digit[kFirstCounts];
  uint32_t listed;
  uint32_t parts;  // blocks that have ended
  uint32_t unused[30];
};

struct ChooseTask : ChooseAt<AddressOf> {
  bool on_tensor_cores = false;        // requires fits_tensor_scores
  std::byte* scratch = nullptr;        // choose_scratch_bytes, 256-byte aligned
  ChooseCounters* counters = nullptr;  // [kMaxChooseRows], zero
};
void run_choose(gpu::Stream& stream, const ChooseTask& task);
/// Whether the tensor cores can compute the scores of keys of this length.
[[nodiscard]] bool fits_tensor_scores(uint32_t dim, const gpu::Properties& properties);

// Sizes, and the choice of launches: pure
// ----------------------------------------------------------------------------------------------------

inline constexpr uint32_t kScorePositions = 64;  // positions per block
inline constexpr uint32_t kScoreThreads = 128;   // 4 warps of 16 positions each
inline constexpr uint32_t kScoreKeyPanel = 128;  // values of a key in shared memory at once: all of a key of V3.2
inline constexpr uint32_t kScorePanel = 16;      // values of queries per panel; two panels are in shared memory
inline constexpr uint32_t kScoreHeads = 64;      // heads per pass over the keys; 32 if there are no more
inline constexpr uint32_t kSelectChunk = 128;    // positions that a warp reads at once

/// Floats between keys in shared memory: an odd number of 16-byte pieces, so that rows at the same column are in
/// different banks.
[[nodiscard]] constexpr uint32_t score_key_stride(uint32_t dim) {
  const uint32_t width = dim < kScoreKeyPanel ? dim : kScoreKeyPanel;
  return ((width + 3) / 4 | 1U) * 4;
}
/// Same for a panel of queries: eight rows at the same column touch all banks once.
inline constexpr uint32_t kScoreQueryStride = kScorePanel + 4;

/// Bytes of a query or key on tensor cores: BF16, rounded up to 128, with the 16-byte pieces swizzled
/// (attention/tensor_keys.cuh).
[[nodiscard]] constexpr uint32_t tensor_score_row_bytes(uint32_t dim) {
  return (dim + 63) / 64 * 128;
}

/// Rows whose orders fit the scratch at once, and its size, which never shrinks with more rows or positions.
struct ChooseRuns {
  uint32_t rows_a_run = 1;
  uint32_t order_stride = 0;  // orders between rows
  uint64_t scratch_bytes = 0;
};
[[nodiscard]] ChooseRuns choose_runs(uint32_t rows, uint32_t position_limit);
/// Scratch for calls with up to `rows` rows and positions below `position_limit`.
[[nodiscard]] inline uint64_t choose_scratch_bytes(uint32_t rows, uint32_t position_limit) {
  return choose_runs(rows, position_limit).scratch_bytes;
}

/// Rows that a block of the scores takes one after the other, so that keys are decoded once for them. 1 if there would
/// otherwise be few blocks.
[[nodiscard]] uint32_t score_rows_of_block(uint32_t rows, uint32_t position_limit);
[[nodiscard]] gpu::LaunchShape choose_scores_launch(const ChooseTask& task, uint32_t rows);
[[nodiscard]] gpu::LaunchShape choose_select_launch(uint32_t rows, uint32_t position_limit);

}  // namespace dspack::kernels::cuda
