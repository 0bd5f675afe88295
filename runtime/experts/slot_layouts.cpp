#include "runtime/experts/slot_layouts.h"

#include <algorithm>
#include <map>

#include "format/part/completion.h"

namespace dspack::runtime {

Result<std::vector<SlotLayout>> slot_layouts(const format::Checkpoint& checkpoint, const ExpertShape& shape,
                                             const std::set<LayerId>& layers) {
  std::map<LayerId, SlotLayout> by_layer;
  for (const auto& [key, tensors] : checkpoint.experts()) {
    if (!layers.empty() && !layers.contains(key.layer)) continue;
    auto plan = plan_slot(checkpoint, key, shape);
    // A part of a model may lack experts, which is an error only when the router picks one; a whole model may not.
    if (!plan && plan.error().kind == ErrorKind::not_found && format::is_part(checkpoint)) continue;
    if (!plan) return explained(plan.error(), key);
    SlotLayout& layout = by_layer[key.layer];
    layout.slot_bytes = std::max(layout.slot_bytes, plan->slot_bytes);
    ++layout.experts;
    layout.layers = {key.layer};
  }
  std::vector<SlotLayout> sorted;
  sorted.reserve(by_layer.size());
  for (auto& [layer, layout] : by_layer)
    sorted.push_back(std::move(layout));
  std::ranges::stable_sort(sorted, std::greater(), &SlotLayout::slot_bytes);
  std::vector<SlotLayout> merged;
  for (const SlotLayout& layout : sorted) {
    if (merged.empty() || layout.slot_bytes < merged.back().slot_bytes / 4 * 3) {
      merged.push_back(layout);
      continue;
    }
    merged.back().experts += layout.experts;
    merged.back().layers.insert(merged.back().layers.end(), layout.layers.begin(), layout.layers.end());
  }
  return merged;
}

std::vector<uint64_t> share_slots(const std::vector<SlotLayout>& layouts, std::optional<uint64_t> slots,
                                  uint64_t least) {
  uint64_t experts = 0;
  for (const SlotLayout& layout : layouts)
    experts += layout.experts;
  std::vector<uint64_t> shares;
  uint64_t left = std::min(slots.value_or(experts), experts);
  for (const SlotLayout& layout : layouts) {
    const uint64_t share = experts == 0 ? 0 : left * layout.experts / experts;  // in proportion to what is left of both
    shares.push_back(std::clamp<uint64_t>(share, std::min(least, layout.experts), layout.experts));
    left -= std::min(left, shares.back());
    experts -= layout.experts;
  }
  return shares;
}

}  // namespace dspack::runtime
