// Routed experts in one launch, for as few tokens as one tile holds: how it is shaped, and what its blocks count.
// device/fused_experts.cuh is the launch itself.
// Threads: pure functions. Lifetime: counters are borrowed until the stream has run. Errors: none.
#pragma once

#include <optional>

#include "kernels/cuda/expert_tiles.h"

namespace dspack::kernels::cuda {

/// Assignments that a tile may hold.
inline constexpr uint32_t kLargestFusedTile = 8;
/// Words that ExpertsTask::counters has.
inline constexpr uint32_t kFusedCounters = 16'384;

/// Where a launch counts.
struct FusedCounters {
  uint32_t* ticket = nullptr;   // of the next block
  uint32_t* done = nullptr;     // blocks that count no more
  uint32_t* gate_up = nullptr;  // [tiles]: blocks of the tile whose values are written
  uint32_t* down = nullptr;     // [tokens, down_blocks]: parts of these rows of the token that are written
  uint32_t size = 0;            // words, from `ticket` on
};

/// Blocks: gate and up of tile 0, of tile 1, .., then down of tile 0, ..
struct FusedShape {
  uint32_t tiles = 0;           // of the worst routing
  uint32_t gate_up_blocks = 0;  // of a tile; block b takes groups b, b + gate_up_blocks, .. of matrix rows
  uint32_t down_blocks = 0;
  gpu::LaunchShape launch;
};

/// gate_up, down: as separate launches would run. Nothing: they are to be launched separately, since
///   * more tokens than a tile holds are several tiles of an expert, which should run beside each other and not one
///     after the other, and work enough that the end of a launch does not count;
///   * the tile is larger than kLargestFusedTile, which is for many tokens; or
///   * there are more tiles or groups of rows than counters.
[[nodiscard]] std::optional<FusedShape> choose_fused_experts(const gpu::LaunchShape& gate_up,
                                                             const gpu::LaunchShape& down, uint32_t tokens,
                                                             uint32_t tile);

[[nodiscard]] FusedCounters lay_out_fused_counters(uint32_t* counters, const FusedShape& shape, uint32_t tokens);

}  // namespace dspack::kernels::cuda
