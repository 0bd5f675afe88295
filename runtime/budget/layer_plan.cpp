#include "runtime/budget/layer_plan.h"

#include <algorithm>

#include "format/base/size.h"

namespace dspack::runtime {

uint64_t LayerPlan::total_bytes() const {
  return saturating_add(resident_bytes, buffer_bytes);
}

LayerPlan keep_all(std::span<const LayerNeed> layers) {
  LayerPlan plan;
  for (const LayerNeed& layer : layers)
    plan.resident_bytes = saturating_add(plan.resident_bytes, layer.bytes);
  return plan;
}

std::optional<LayerPlan> stream_layers(std::span<const LayerNeed> layers, uint32_t least_buffers,
                                       const std::function<bool(const LayerPlan&)>& fits) {
  std::vector<LayerNeed> order(layers.begin(), layers.end());
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) {
    if (a.uses != b.uses) return a.uses < b.uses;
    if (a.bytes != b.bytes) return a.bytes < b.bytes;
    return a.id.value > b.id.value;
  });
  for (uint32_t buffers = 2; buffers >= least_buffers && buffers > 0; --buffers) {
    LayerPlan plan;
    uint64_t largest = 0;
    for (size_t count = 1; count <= order.size(); ++count) {
      const LayerNeed& layer = order[count - 1];
      plan.streamed.push_back(layer.id);
      plan.streamed_bytes = saturating_add(plan.streamed_bytes, saturating_mul(layer.bytes, layer.uses));
      plan.resident_bytes = keep_all(std::span(order).subspan(count)).resident_bytes;
      largest = std::max(largest, layer.bytes);
      plan.buffers = static_cast<uint32_t>(std::min<size_t>(buffers, count));
      plan.buffer_bytes = saturating_mul(plan.buffers, largest);
      if (!fits(plan)) continue;
      std::ranges::sort(plan.streamed);
      return plan;
    }
  }
  return std::nullopt;
}

format::Json ids_of(const LayerPlan& plan) {
  format::Json ids = format::Json::array();
  for (const LayerId layer : plan.streamed)
    ids.push_back(layer.value);
  return ids;
}

std::vector<LayerNeed> among(std::span<const LayerNeed> layers, std::span<const LayerId> ids) {
  std::vector<LayerNeed> found;
  for (const LayerNeed& layer : layers) {
    if (std::ranges::binary_search(ids, layer.id)) found.push_back(layer);
  }
  return found;
}

}  // namespace dspack::runtime
