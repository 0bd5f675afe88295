// The routed experts of a layer on a GPU: all of them in one launch per step, found through a table on the device, so
// that launches depend on shapes alone and one recorded graph serves every routing.
//
// Few tokens take one launch (FusedShape), more of them one a step.
//
// Steps: assignments (token * top_k + slot) are sorted by expert and cut into tiles of one expert (one token needs no
// sorting); gate, up and SiLU; down; the sum over slots in the router's order, by fma. Weights are read once a tile.
// Threads: as the stream. Lifetime: device memory is borrowed until the stream has run. Errors: shapes that do not fit
// are DSPACK_CHECKs; expert numbers lie on the device and are not checked: one that is not below `experts` reads beyond
// the table (one token) or leaves its part, or its token's row, unwritten.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/rounded_rows.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Where one expert's planes lie, on the device; null where the form has none.
struct ExpertEntry {
  const void* gate[kPlanes] = {};
  const void* up[kPlanes] = {};
  const void* down[kPlanes] = {};
};

/// Gate and up [inner, hidden] are stored alike; down [hidden, inner].
struct ExpertForm {
  MatrixForm gate_up;
  MatrixForm down;
};

/// Assignments of some experts, cut into tiles by the host (cut_expert_groups) or of those that are held
/// (cut_held_experts), instead of all by ids.
struct CutTiles {
  const uint32_t* words = nullptr;  // on the device
  uint32_t tiles = 0;               // at most; 0: nothing was cut
  uint32_t order_at = 0;            // words before the order of assignments
  uint32_t most = 0;                // assignments of one expert
  bool awaits_copies = true;        // the stream may wait for weights: then the launch does not overlap with others
};

/// A gated MLP that every token passes through besides its experts, of any width.
struct SharedExpert {
  Matrix gate, up;                 // [inner, hidden]
  Matrix down;                     // [hidden, inner]
  RowsAt<float> inner;             // [tokens, inner], overwritten
  RowsAt<float> y;                 // [tokens, hidden], overwritten
  RoundedRows rounded_inner = {};  // for run_experts_tensor: a place for [tokens, inner]
};

struct ExpertsTask {
  const ExpertEntry* table = nullptr;
  ExpertForm form;
  uint32_t experts = 0;            // in the table
  RowsAt<const float> x;           // [tokens, hidden]
  const uint32_t* ids = nullptr;   // [tokens, top_k], each below `experts`
  const float* weights = nullptr;  // [tokens, top_k]
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  void* scratch = nullptr;  // of experts_scratch_bytes for at least so many tokens, 256-byte aligned
  RowsAt<float> y = {};     // [tokens, hidden]; not x
  /// Where they are, what an expert gives goes to `parts`, by assignment, and nothing is added up: ids, weights and y
  /// are not looked at.
  CutTiles cut = {};
  RowsAt<float> parts = {};  // [tokens * top_k, hidden]
  /// kFusedCounters words, zero, that no other stream uses; they are zero again when the stream has run. Null: one
  /// launch a step, with the same bits.
  uint32_t* counters = nullptr;
  /// What is added behind a token's slots, [tokens, hidden]; null: nothing.
  RowsAt<const float> more = {};
  bool adds = false;  // y += all of it
  /// Computed in the same launch, and then `more` is what it gives. Precondition: takes_shared_expert.
  const SharedExpert* shared = nullptr;
  /// x as run_experts_tensor takes it, where that is there already; no values: it is not.
  RoundedRows rounded_x = {};
};

/// Tokens that an expert gets at most.
[[nodiscard]] inline uint32_t most_tokens(const ExpertsTask& task) {
  return task.cut.tiles > 0 ? task.cut.most : task.tokens;
}

/// Grows with every number of the shape. Serves run_experts, and unless `precision` is exact run_experts_tensor;
/// `parts_only`: of tasks whose tiles were cut beforehand.
[[nodiscard]] uint64_t experts_scratch_bytes(const ExpertsShape& shape, Precision precision);

/// Precision mode `exact` (kernels/ops.h): FP32 activations and accumulation; the value of an output depends on its
/// input row and its slots alone.
void run_experts(gpu::Stream& stream, const ExpertsTask& task);
/// Whether run_experts computes task.shared in the launch of the routed experts: these take one launch, and it is
/// stored in their coding, in rows that 16-byte reads fit. Pure.
[[nodiscard]] bool takes_shared_expert(const ExpertsTask& task);

// Tensor cores, for precision modes bf16 and fp8: weights decoded exactly to BF16, inputs rounded to it
// (rounded_rows.h: x by a launch of its own; what gate and up give by the blocks of one launch, else by another), FP32
// accumulation, scales applied to the FP32 sums of a chunk of columns. For few tokens (a tile of 8 assignments) and for
// many (64).

/// Whether the tensor cores can multiply these weights without rounding them (fits_tensor_cores). Others take
/// run_experts.
[[nodiscard]] bool experts_fit_tensor_cores(const ExpertForm& form);

/// As takes_shared_expert, of run_experts_tensor. Pure.
[[nodiscard]] bool takes_shared_expert_tensor(const ExpertsTask& task);
/// Precondition: experts_fit_tensor_cores. `precision`: bf16 or fp8 (linear_tensor). The value of an output depends
/// on its input row and its slots alone.
void run_experts_tensor(gpu::Stream& stream, const ExpertsTask& task, Precision precision);

/// Assignments that an expert may get: one, up to 8, or more.
enum class TensorTokens { one, few, many };
[[nodiscard]] constexpr TensorTokens tensor_tokens(uint32_t tokens) {
  constexpr uint32_t kFew = 8;
  return tokens <= 1 ? TensorTokens::one : tokens <= kFew ? TensorTokens::few : TensorTokens::many;
}

/// How a product runs. Pure.
struct ExpertsTensorChoice {
  TensorTokens tokens = TensorTokens::one;  // that a tile may hold
  uint32_t staged_columns = 0;              // of the inputs, in shared memory at once, for a full tile
  gpu::LaunchShape shape;                   // x: tiles, y: groups of matrix rows
};
/// tokens, tiles: as choose_experts. matrices: 2 for gate and up, 1 for down.
[[nodiscard]] ExpertsTensorChoice choose_experts_tensor(const MatrixForm& form, uint32_t matrices, uint32_t tokens,
                                                        uint64_t tiles);
/// Warps of a block. Few tokens: small blocks, that all multiprocessors get some. Many: large ones, since each stages
/// its inputs anew; six warps: of two blocks three to a scheduler, 168 registers each.
[[nodiscard]] constexpr unsigned expert_tensor_warps(TensorTokens tokens) {
  constexpr unsigned kFew = 4;
  constexpr unsigned kMany = 6;
  return tokens == TensorTokens::many ? kMany : kFew;
}
/// Tiles of 16 matrix rows that a warp multiplies at once. One token: one, so that there are more blocks, of which the
/// last to start end less long after the others. More: two, which share what is read of the inputs.
[[nodiscard]] constexpr unsigned expert_row_tiles(TensorTokens tokens) {
  return tokens == TensorTokens::one ? 1 : 2;
}
/// Assignments of a tile.
[[nodiscard]] constexpr uint32_t tensor_tile(uint32_t tokens) {
  constexpr uint32_t kFew = 8;
  constexpr uint32_t kMany = 64;
  return tensor_tokens(tokens) == TensorTokens::many ? kMany : kFew;
}

// One launch, for as few tokens as one tile holds: how it is shaped, and what its blocks count (device/experts.cuh).

/// Assignments that a tile may hold.
inline constexpr uint32_t kLargestFusedTile = 8;
/// Words that ExpertsTask::counters has.
inline constexpr uint32_t kFusedCounters = 16'384;

/// Where a launch counts.
struct FusedCounters {
  uint32_t* ticket = nullptr;        // of the next block
  uint32_t* done = nullptr;          // blocks that count no more
  uint32_t* gate_up = nullptr;       // [tiles], and of the shared expert: its blocks whose values are written
  uint32_t* inner = nullptr;         // [tiles, inner_blocks]: parts of these values of the tile that are written
  uint32_t* shared_inner = nullptr;  // [shared.inner_blocks]: likewise
  uint32_t* down = nullptr;          // [tokens, down_blocks]: parts of these rows of the token that are written
  uint32_t size = 0;                 // words, from `ticket` on
};

/// Of a shared expert that runs in the same launch; it has as many blocks of down as a tile.
struct FusedSharedShape {
  uint32_t gate_up_blocks = 0;  // 0: there is none
  uint32_t inner_blocks = 0;    // as FusedShape's
};

/// Blocks: gate and up of the shared expert, of tile 0, of tile 1, .., then down of tile 0, .., of the shared expert.
struct FusedShape {
  uint32_t tiles = 0;           // of the worst routing
  uint32_t gate_up_blocks = 0;  // of a tile; block b takes groups b, b + gate_up_blocks, .. of matrix rows
  uint32_t down_blocks = 0;
  uint32_t inner_blocks = 0;  // of what gate and up give for a token: values that are rounded together
  FusedSharedShape shared;
  gpu::LaunchShape launch;
};

/// gate_up, down: as separate launches would run. inner_blocks: 0 where inputs are not rounded. Nothing: they are to be
/// launched separately, since
///   * more tokens of an expert than a tile holds are several tiles of it, which should run beside each other and not
///     one after the other, and work enough that the end of a launch does not count;
///   * the tile is larger than kLargestFusedTile, which is for many tokens; or
///   * there are more tiles or groups of rows than counters.
[[nodiscard]] std::optional<FusedShape> choose_fused_experts(const gpu::LaunchShape& gate_up,
                                                             const gpu::LaunchShape& down, uint32_t tokens,
                                                             uint32_t tile, uint32_t inner_blocks = 0,
                                                             const FusedSharedShape& shared = {});

[[nodiscard]] FusedCounters lay_out_fused_counters(uint32_t* counters, const FusedShape& shape, uint32_t tokens);

}  // namespace dspack::kernels::cuda
