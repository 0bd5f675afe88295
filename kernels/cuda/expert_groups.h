// Assignments of some of a layer's experts as kernels take them (ExpertTiles), cut by the host: for who computes
// experts as they become available. Threads: pure functions. Lifetime: plain values. Errors: none; groups have been
// checked (check_expert_parts).
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/experts.h"

namespace dspack::kernels::cuda {

/// What goes to the device in one piece: the number of tiles, the tiles, the order of assignments.
struct ExpertGroupWords {
  std::vector<uint32_t> words;
  uint32_t tiles = 0;
  uint32_t order_at = 0;
  /// With the words at their place on the device. `most`: assignments of the largest group.
  [[nodiscard]] CutTiles at(const uint32_t* place, uint32_t most) const {
    return {.words = place, .tiles = tiles, .order_at = order_at, .most = most};
  }
};

/// Assignments of the largest group.
[[nodiscard]] uint32_t largest_group(std::span<const ExpertGroup> groups);
/// Tiles of at most `tile` assignments, of one expert each.
[[nodiscard]] ExpertGroupWords cut_expert_groups(std::span<const ExpertGroup> groups, uint32_t tile);

}  // namespace dspack::kernels::cuda
