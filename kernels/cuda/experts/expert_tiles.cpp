#include "kernels/cuda/experts/expert_tiles.h"

#include <algorithm>

#include "format/base/size.h"

namespace dspack::kernels::cuda {

uint64_t most_expert_tiles(uint64_t assignments, uint32_t experts, uint32_t tile) {
  // An expert's first assignment opens a tile; every further tile takes `tile` more.
  if (assignments <= experts) return assignments;
  return experts + (assignments - experts) / tile;
}

ExpertsScratch lay_out_experts(void* scratch, const ExpertsShape& shape, Precision precision) {
  constexpr uint64_t kAlignment = 256;
  const uint64_t assignments = uint64_t{shape.rows} * shape.top_k;
  ExpertsScratch places;
  const auto add = [&]<class T>(T*& place, uint64_t count) {
    place = scratch == nullptr ? nullptr : reinterpret_cast<T*>(static_cast<std::byte*>(scratch) + places.size_bytes);
    places.size_bytes += round_up(count * sizeof(T), kAlignment);
  };
  add(places.inner, assignments * shape.inner);
  if (!shape.parts_only) {  // else the caller owns the parts, and the host makes tiles and order
    add(places.parts, (assignments + (precision == Precision::exact ? 0 : kPartsPadding)) * shape.hidden);
    constexpr uint32_t kSmallestTile = 2;  // smallest tile size that is stored
    add(places.tiles, most_expert_tiles(assignments, shape.experts, kSmallestTile));
    add(places.tile_count, 1);
    add(places.order, assignments);
    add(places.counts, shape.experts);
  }
  if (precision == Precision::exact) return places;
  add(places.rounded_x, rounded_bytes(shape.rows, shape.hidden));
  add(places.rounded_inner, rounded_bytes(assignments, shape.inner));
  return places;
}

uint64_t experts_scratch_bytes(const ExpertsShape& shape, Precision precision) {
  return lay_out_experts(nullptr, shape, precision).size_bytes;
}

uint32_t largest_group(std::span<const ExpertGroup> groups) {
  size_t most = 0;
  for (const ExpertGroup& group : groups)
    most = std::max(most, group.parts.size());
  return launch_count(most);
}

ExpertGroupWords cut_expert_groups(std::span<const ExpertGroup> groups, uint32_t tile) {
  ExpertGroupWords cut;
  std::vector<uint32_t> order;
  cut.words.push_back(0);
  for (const ExpertGroup& group : groups) {
    const auto count = launch_count(group.parts.size());
    for (uint32_t first = 0; first < count; first += tile) {
      const auto before = launch_count(order.size());
      cut.words.insert(cut.words.end(), {group.entry, before + first, std::min(tile, count - first), 0});
      ++cut.tiles;
    }
    order.insert(order.end(), group.parts.begin(), group.parts.end());
  }
  cut.words.front() = cut.tiles;
  cut.order_at = launch_count(cut.words.size());
  cut.words.insert(cut.words.end(), order.begin(), order.end());
  return cut;
}

}  // namespace dspack::kernels::cuda
