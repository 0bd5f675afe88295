// Assignments of tokens to experts, sorted by expert and divided into tiles; shared by the products of routed experts,
// with the choices of their launches. The GPU sorts and divides all assignments of a call; the host divides those of
// some experts, for callers that compute experts as these become available. Threads: pure functions; enqueueing as the
// stream. Lifetime: device memory is borrowed until the stream has run. Errors: none; groups have been checked
// (check_expert_parts).
#pragma once

#include <span>
#include <vector>

#include "format/base/check.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/tokens/rounded_rows.h"

namespace dspack::kernels::cuda {

/// Assignments order[first .. first + count) belong to `expert`.
struct ExpertTile {
  uint32_t expert = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t unused = 0;
};

/// Tiles on the device. For one token there are none: every assignment i is its own tile, with expert ids[i].
struct ExpertTiles {
  const ExpertTile* tiles = nullptr;
  const uint32_t* tile_count = nullptr;
  const uint32_t* order = nullptr;
  const uint32_t* ids = nullptr;
};

/// Rows after the parts of all assignments that products of whole tiles may overwrite, except in precision exact.
inline constexpr uint32_t kPartsPadding = 64;

/// Addresses in a scratch buffer.
struct ExpertsScratch {
  float* inner = nullptr;  // [tokens * top_k, inner]: act(gate) * up, by assignment
  float* parts = nullptr;  // [tokens * top_k, hidden]: expert results by assignment (experts_blas: sorted)
  ExpertTile* tiles = nullptr;
  uint32_t* tile_count = nullptr;
  uint32_t* order = nullptr;
  uint32_t* counts = nullptr;  // [experts]: assignments of each
  // Except in precision exact: memory of lay_out_rounded.
  std::byte* rounded_x = nullptr;      // [tokens, hidden]
  std::byte* rounded_inner = nullptr;  // [tokens * top_k, inner]
  uint64_t size_bytes = 0;
};
[[nodiscard]] ExpertsScratch lay_out_experts(void* scratch, const ExpertsShape& shape, Precision precision);

/// Tiles of `tile` assignments that the worst routing can need.
[[nodiscard]] uint64_t most_expert_tiles(uint64_t assignments, uint32_t experts, uint32_t tile);

/// Most tiles of a task.
[[nodiscard]] uint64_t expert_tiles_of(const ExpertsTask& task, uint32_t tile);

/// Returns the precomputed tiles (task.cut) if there are any; else sorts the assignments of a task by expert, stably,
/// and divides them into tiles of at most `tile`. Deterministic order.
[[nodiscard]] ExpertTiles make_expert_tiles(gpu::Stream& stream, const ExpertsTask& task, const ExpertsScratch& scratch,
                                            uint32_t tile);

/// One block for few assignments; else several, each for some of the experts.
[[nodiscard]] gpu::LaunchShape choose_expert_tiles_launch(uint32_t experts, uint32_t assignments);

/// A 32-bit count for a launch or a tile. (nvcc rejects narrow() of unsigned numbers.)
[[nodiscard]] inline uint32_t launch_count(uint64_t count) {
  DSPACK_CHECK(count <= UINT32_MAX, "integer does not fit");
  return static_cast<uint32_t>(count);
}

/// Launch of the exact product with one matrix of each expert.
struct ExpertsChoice {
  unsigned tokens = 1;         // capacity of a tile: 1, 2 or kExactTokens
  uint32_t staged_groups = 1;  // groups of 32 chunks in shared memory at once, for all input rows together
  gpu::LaunchShape shape;      // x: tiles, y: groups of matrix rows
};
inline constexpr uint32_t kExactTokens = 4;
/// Most assignments in a tile of exact products. (Two tokens rarely fill a larger one: a router's choices differ.)
[[nodiscard]] constexpr uint32_t exact_tile(uint32_t tokens) {
  return tokens < 3 ? tokens : kExactTokens;
}
/// 16-byte pieces of weights that a lane has in flight, over all matrices and rows that it multiplies at once: 64 KiB
/// per multiprocessor, both with four blocks and with two, which have the registers for larger tiles.
[[nodiscard]] constexpr unsigned exact_pieces(unsigned tokens) {
  return tokens <= 2 ? 4 : 8;
}
/// matrices: multiplied at once, 2 for gate and up, 1 for down. tokens: most that an expert gets; tiles: in the worst
/// routing.
[[nodiscard]] ExpertsChoice choose_experts(const MatrixForm& form, uint32_t matrices, uint32_t tokens, uint64_t tiles);

/// Data for the device, in one upload: the number of tiles, the tiles, the order of assignments.
struct ExpertGroupWords {
  std::vector<uint32_t> words;
  uint32_t tiles = 0;
  uint32_t order_at = 0;
  /// The tiles, once the words are at `place` on the device. `most`: assignments of the largest group.
  [[nodiscard]] CutTiles at(const uint32_t* place, uint32_t most) const {
    return {.words = place, .tiles = tiles, .order_at = order_at, .most = most};
  }
};

/// A router's assignments; the device selects those whose expert is held (HeldExpertsArgs).
struct HeldAssignments {
  const uint32_t* ids = nullptr;      // [count], on the device
  const uint32_t* entries = nullptr;  // by expert, visible to the device; kNoEntry: the expert is not held
  uint32_t count = 0;                 // at most kMaxHeldAssignments
};
/// One block with a thread per assignment.
inline constexpr uint32_t kMaxHeldAssignments = 256;
/// Words for their tiles, in the layout of ExpertGroupWords.
inline constexpr uint32_t kHeldTilesWords = 1 + (4 + 1) * kMaxHeldAssignments;
/// Enqueues the division into tiles of at most `tile` assignments, written to `words`, which has room for
/// kHeldTilesWords. In the result, `tiles` is that of the worst routing of `experts`; the caller sets `most`.
[[nodiscard]] CutTiles cut_held_experts(gpu::Stream& stream, const HeldAssignments& held, uint32_t experts,
                                        uint32_t tile, uint32_t* words);

/// Assignments of the largest group.
[[nodiscard]] uint32_t largest_group(std::span<const ExpertGroup> groups);
/// Tiles of at most `tile` assignments, each of one expert.
[[nodiscard]] ExpertGroupWords cut_expert_groups(std::span<const ExpertGroup> groups, uint32_t tile);

}  // namespace dspack::kernels::cuda
