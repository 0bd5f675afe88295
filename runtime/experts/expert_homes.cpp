#include "runtime/experts/expert_homes.h"

#include <algorithm>
#include <numeric>

#include "format/base/check.h"

namespace dspack::runtime {

ExpertHomes::ExpertHomes(const std::vector<SlotLayout>& layouts, uint32_t experts, std::span<const uint64_t> slots)
    : counts_(slots.size()) {
  DSPACK_CHECK(slots.size() > 1 && slots.size() <= UINT8_MAX, "homes on one device, or on too many");
  std::vector<std::vector<uint64_t>> shares;  // by device and layout
  shares.reserve(slots.size());
  for (const uint64_t of_device : slots)
    shares.push_back(share_slots(layouts, of_device, 0));
  for (size_t layout = 0; layout < layouts.size(); ++layout) {
    std::vector<int64_t> weights;
    for (const auto& of_device : shares)
      weights.push_back(static_cast<int64_t>(of_device[layout]));
    if (std::ranges::max(weights) == 0) std::ranges::fill(weights, 1);
    const int64_t all = std::accumulate(weights.begin(), weights.end(), int64_t{0});
    std::vector<int64_t> due(weights.size());
    for (const LayerId layer : layouts[layout].layers) {
      std::vector<uint8_t>& homes = by_layer_[layer];
      for (uint32_t expert = 0; expert < experts; ++expert) {
        for (size_t device = 0; device < due.size(); ++device)
          due[device] += weights[device];
        const auto next = std::ranges::max_element(due);
        *next -= all;
        homes.push_back(static_cast<uint8_t>(next - due.begin()));
        ++counts_[homes.back()];
      }
    }
  }
}

Result<ExpertHomes> ExpertHomes::find(const format::Checkpoint& checkpoint, const DeviceExperts& experts,
                                      std::span<const uint64_t> slots) {
  TRY_ASSIGN(const auto layouts, lay_out_experts(checkpoint, experts, ExpertPresence::some));
  return ExpertHomes(device_slot_layouts(layouts, experts.experts), experts.experts, slots);
}

size_t ExpertHomes::of(LayerId layer, ExpertId expert) const {
  const auto found = by_layer_.find(layer);
  return found == by_layer_.end() ? 0 : found->second[expert.value];
}

std::vector<uint64_t> level_slots(std::span<const uint64_t> room, uint64_t experts) {
  std::vector<size_t> order(room.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::less(), [&](size_t device) { return room[device]; });
  std::vector<uint64_t> slots(room.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t level = (experts + order.size() - i - 1) / (order.size() - i);
    slots[order[i]] = std::min(room[order[i]], level);
    experts -= slots[order[i]];
  }
  return slots;
}

}  // namespace dspack::runtime
