#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/experts_fused.h"

namespace dspack::kernels::cuda {

std::optional<FusedShape> choose_fused_experts(const gpu::LaunchShape& gate_up, const gpu::LaunchShape& down,
                                               uint32_t tokens, uint32_t tile) {
  if (tokens > tile || tile > kLargestFusedTile) return std::nullopt;
  FusedShape shape{
      .tiles = gate_up.grid_x, .gate_up_blocks = gate_up.grid_y, .down_blocks = down.grid_y, .launch = gate_up};
  if (2 + uint64_t{shape.tiles} + uint64_t{tokens} * shape.down_blocks > kFusedCounters) return std::nullopt;
  // Fewer than 2^31: fewer than 2^14 tiles, each of fewer than 2^17 blocks.
  const uint64_t blocks = uint64_t{shape.tiles} * (uint64_t{shape.gate_up_blocks} + shape.down_blocks);
  constexpr unsigned kWordsBytes = 128;  // device/fused_experts.cuh: what the threads of a block tell each other
  shape.launch.grid_x = narrow<unsigned>(blocks);
  shape.launch.grid_y = 1;
  shape.launch.shared_bytes = std::max({gate_up.shared_bytes, down.shared_bytes, kWordsBytes});
  return shape;
}

FusedCounters lay_out_fused_counters(uint32_t* counters, const FusedShape& shape, uint32_t tokens) {
  FusedCounters places{.ticket = counters, .done = counters + 1, .gate_up = counters + 2};
  places.down = places.gate_up + shape.tiles;
  places.size = narrow<uint32_t>(2 + uint64_t{shape.tiles} + uint64_t{tokens} * shape.down_blocks);
  return places;
}

}  // namespace dspack::kernels::cuda
