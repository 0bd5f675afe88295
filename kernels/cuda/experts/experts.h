// The routed experts of a layer on a GPU: all of them in one launch per step, found through a table on the device, so
// that launches depend only on shapes and one recorded graph serves every routing.
//
// Few tokens take one launch (FusedShape), more take one launch per step.
//
// Steps: assignments (token * top_k + slot) are sorted by expert and divided into tiles of one expert (one token needs
// no sorting); gate, up and SiLU; down; the sum over slots in the router's order, by fma. Weights are read once per
// tile.
// Threads: as the stream. Lifetime: device memory is borrowed until the stream has run. Errors: shapes that do not fit
// are DSPACK_CHECKs; expert numbers are in device memory and not checked: one that is not below `experts` reads beyond
// the table (one token) or leaves its part, or its token's row, unwritten.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/cuda/tokens/rounded_rows.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Device addresses of one expert's planes; null if the form lacks a plane.
struct ExpertEntry {
  const void* gate[kPlanes] = {};
  const void* up[kPlanes] = {};
  const void* down[kPlanes] = {};
};

/// Gate and up [inner, hidden] have the same form; down [hidden, inner].
struct ExpertForm {
  MatrixForm gate_up;
  MatrixForm down;
  float limit = kNoLimit;  // ExpertMatrices
};

/// Assignments of some experts, divided into tiles by the host (cut_expert_groups), or assignments of held experts
/// (cut_held_experts), instead of all assignments in `ids`.
struct CutTiles {
  const uint32_t* words = nullptr;  // on the device
  uint32_t tiles = 0;               // most tiles; 0: not divided
  uint32_t order_at = 0;            // words before the order of assignments
  uint32_t most = 0;                // most assignments of one expert
  bool awaits_copies = true;        // the stream may wait for weights, so the launch must not overlap with others
};

/// A gated MLP of any width that every token also passes through.
struct SharedExpert {
  Matrix gate, up;                 // [inner, hidden]
  Matrix down;                     // [hidden, inner]
  RowsAt<float> inner;             // [tokens, inner], overwritten
  RowsAt<float> y;                 // [tokens, hidden], overwritten
  float limit = kNoLimit;          // ExpertMatrices
  RoundedRows rounded_inner = {};  // for run_experts_tensor: memory for [tokens, inner]
};

struct ExpertsTask {
  const ExpertEntry* table = nullptr;
  ExpertForm form;
  uint32_t experts = 0;            // size of the table
  RowsAt<const float> x;           // [tokens, hidden]
  const uint32_t* ids = nullptr;   // [tokens, top_k], each below `experts`
  const float* weights = nullptr;  // [tokens, top_k]
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  void* scratch = nullptr;  // experts_scratch_bytes for at least these tokens, 256-byte aligned
  RowsAt<float> y = {};     // [tokens, hidden]; not x
  /// If set, results go to `parts`, by assignment, and are not summed; ids, weights and y are not used.
  CutTiles cut = {};
  RowsAt<float> parts = {};  // [tokens * top_k, hidden]
  /// kFusedCounters words, zero, used by no other stream; zero again when the stream has run. Null: one launch per
  /// step, with the same bits.
  uint32_t* counters = nullptr;
  /// Added after a token's slots, [tokens, hidden]; null: nothing.
  RowsAt<const float> more = {};
  bool adds = false;  // y += the result
  /// Computed in the same launch, with its result as `more`. Precondition: takes_shared_expert.
  const SharedExpert* shared = nullptr;
  /// x rounded for run_experts_tensor, if it already is; no values: it is not.
  RoundedRows rounded_x = {};
};

/// Most tokens that an expert gets.
[[nodiscard]] inline uint32_t most_tokens(const ExpertsTask& task) {
  return task.cut.tiles > 0 ? task.cut.most : task.tokens;
}

/// Monotonic in every number of the shape. Serves run_experts, and unless `precision` is exact run_experts_tensor;
/// `parts_only`: for tasks with precomputed tiles.
[[nodiscard]] uint64_t experts_scratch_bytes(const ExpertsShape& shape, Precision precision);

/// Precision mode `exact` (kernels/ops.h): FP32 activations and accumulation; the value of an output depends only on
/// its input row and its slots.
void run_experts(gpu::Stream& stream, const ExpertsTask& task);
/// Whether run_experts computes task.shared in the launch of the routed experts: these take one launch, and the shared
/// expert has their coding, in rows that allow 16-byte reads. Pure.
[[nodiscard]] bool takes_shared_expert(const ExpertsTask& task);

// Tensor cores, for precision modes bf16 and fp8: weights decoded exactly to BF16, inputs rounded to it
// (rounded_rows.h: x by its own launch; gate and up's results by the blocks of a single launch, else by another one),
// FP32 accumulation, scales applied to the FP32 sums of a chunk of columns. For few tokens (a tile of 8 assignments)
// and for many (64).

/// Whether the tensor cores can multiply these weights without rounding them (fits_tensor_cores). Otherwise use
/// run_experts.
[[nodiscard]] bool experts_fit_tensor_cores(const ExpertForm& form);

/// As takes_shared_expert, for run_experts_tensor. Pure.
[[nodiscard]] bool takes_shared_expert_tensor(const ExpertsTask& task);
/// Precondition: experts_fit_tensor_cores. `precision`: bf16 or fp8 (linear_tensor). The value of an output depends
/// only on its input row and its slots.
void run_experts_tensor(gpu::Stream& stream, const ExpertsTask& task, Precision precision);

/// Most assignments of an expert: one, up to 8, or more.
enum class TensorTokens { one, few, many };
[[nodiscard]] constexpr TensorTokens tensor_tokens(uint32_t tokens) {
  constexpr uint32_t kFew = 8;
  return tokens <= 1 ? TensorTokens::one : tokens <= kFew ? TensorTokens::few : TensorTokens::many;
}

/// Launch of a product. Pure.
struct ExpertsTensorChoice {
  TensorTokens tokens = TensorTokens::one;  // capacity of a tile
  uint32_t staged_columns = 0;              // columns of the inputs in shared memory at once, for a full tile
  gpu::LaunchShape shape;                   // x: tiles, y: groups of matrix rows
};
/// tokens, tiles: as in choose_experts. matrices: 2 for gate and up, 1 for down.
[[nodiscard]] ExpertsTensorChoice choose_experts_tensor(const MatrixForm& form, uint32_t matrices, uint32_t tokens,
                                                        uint64_t tiles);
/// Warps per block. Few tokens: small blocks, so that all multiprocessors get some. Many: large ones, since each block
/// stages its inputs again; with six warps and two blocks, three warps per scheduler with 168 registers each.
[[nodiscard]] constexpr unsigned expert_tensor_warps(TensorTokens tokens) {
  constexpr unsigned kFew = 4;
  constexpr unsigned kMany = 6;
  return tokens == TensorTokens::many ? kMany : kFew;
}
/// Tiles of 16 matrix rows that a warp multiplies at once. One token: one tile, since more blocks finish more evenly.
/// More tokens: two tiles, which share the reads of inputs.
[[nodiscard]] constexpr unsigned expert_row_tiles(TensorTokens tokens) {
  return tokens == TensorTokens::one ? 1 : 2;
}
/// Assignments per tile.
[[nodiscard]] constexpr uint32_t tensor_tile(uint32_t tokens) {
  constexpr uint32_t kFew = 8;
  constexpr uint32_t kMany = 64;
  return tensor_tokens(tokens) == TensorTokens::many ? kMany : kFew;
}

// The single launch for as few tokens as one tile holds: its shape, and what its blocks count (experts/experts.cuh).

/// Largest tile, in assignments, for a single launch.
inline constexpr uint32_t kLargestFusedTile = 8;
/// Words in ExpertsTask::counters.
inline constexpr uint32_t kFusedCounters = 16'384;

/// Counters of a single launch.
struct FusedCounters {
  uint32_t* ticket = nullptr;        // number of the next block
  uint32_t* done = nullptr;          // blocks that no longer use the counters
  uint32_t* gate_up = nullptr;       // [tiles], then the shared expert: its blocks whose values are written
  uint32_t* inner = nullptr;         // [tiles, inner_blocks]: written parts of these values of the tile
  uint32_t* shared_inner = nullptr;  // [shared.inner_blocks]: as `inner`
  uint32_t* down = nullptr;          // [tokens, down_blocks]: written parts of these rows of the token
  uint32_t size = 0;                 // words, beginning at `ticket`
};

/// Shape of a shared expert that runs in the same launch; it has the same number of down blocks as a tile.
struct FusedSharedShape {
  uint32_t gate_up_blocks = 0;  // 0: no shared expert
  uint32_t inner_blocks = 0;    // as in FusedShape
};

/// Blocks: gate and up of the shared expert, of tile 0, of tile 1, .., then down of tile 0, .., of the shared expert.
struct FusedShape {
  uint32_t tiles = 0;           // in the worst routing
  uint32_t gate_up_blocks = 0;  // per tile; block b takes groups b, b + gate_up_blocks, .. of matrix rows
  uint32_t down_blocks = 0;
  uint32_t inner_blocks = 0;  // blocks of values per token that are rounded together, after gate and up
  FusedSharedShape shared;
  gpu::LaunchShape launch;
};

/// gate_up, down: as separate launches would run. inner_blocks: 0 if inputs are not rounded. Nullopt: they must be
/// launched separately, since
///   * an expert with more tokens than a tile holds has several tiles, which should run concurrently and are enough
///   work
///     that the tail of a launch does not matter;
///   * the tile is larger than kLargestFusedTile, which is for many tokens; or
///   * there are more tiles or groups of rows than counters.
[[nodiscard]] std::optional<FusedShape> choose_fused_experts(const gpu::LaunchShape& gate_up,
                                                             const gpu::LaunchShape& down, uint32_t tokens,
                                                             uint32_t tile, uint32_t inner_blocks = 0,
                                                             const FusedSharedShape& shared = {});

[[nodiscard]] FusedCounters lay_out_fused_counters(uint32_t* counters, const FusedShape& shape, uint32_t tokens);

}  // namespace dspack::kernels::cuda
