#include "kernels/cuda/expert_groups.h"

#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/expert_tiles.h"

namespace dspack::kernels::cuda {

static_assert(sizeof(ExpertTile) == 4 * sizeof(uint32_t), "a tile is four words");

uint32_t largest_group(std::span<const ExpertGroup> groups) {
  size_t most = 0;
  for (const ExpertGroup& group : groups)
    most = std::max(most, group.parts.size());
  return narrow<uint32_t>(most);
}

ExpertGroupWords cut_expert_groups(std::span<const ExpertGroup> groups, uint32_t tile) {
  ExpertGroupWords cut;
  std::vector<uint32_t> order;
  cut.words.push_back(0);
  for (const ExpertGroup& group : groups) {
    const auto count = narrow<uint32_t>(group.parts.size());
    for (uint32_t first = 0; first < count; first += tile) {
      const auto before = narrow<uint32_t>(order.size());
      cut.words.insert(cut.words.end(), {group.entry, before + first, std::min(tile, count - first), 0});
      ++cut.tiles;
    }
    order.insert(order.end(), group.parts.begin(), group.parts.end());
  }
  cut.words.front() = cut.tiles;
  cut.order_at = narrow<uint32_t>(cut.words.size());
  cut.words.insert(cut.words.end(), order.begin(), order.end());
  return cut;
}

}  // namespace dspack::kernels::cuda
