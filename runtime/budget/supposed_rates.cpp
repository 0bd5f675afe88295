#include "runtime/budget/supposed_rates.h"

#include <algorithm>

namespace dspack::runtime {
namespace {

double seconds_for(uint64_t bytes, uint64_t rate) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(rate, 1));
}

}  // namespace

std::string_view to_string(RateOrigin origin) {
  switch (origin) {
    case RateOrigin::measured: return "measured";
    case RateOrigin::given: return "given";
    case RateOrigin::assumed: return "assumed";
  }
  DSPACK_CHECK(false, "an origin of a rate");
}

ReadTimes reads_at(uint64_t rate, uint64_t expert_bytes, uint32_t count, Medium medium) {
  const double one = seconds_for(expert_bytes, rate);
  return {.one = one, .several = one * count, .count = count, .expert_bytes = expert_bytes, .medium = medium};
}

LinkTimes link_at(uint64_t rate, uint64_t expert_bytes, uint32_t count) {
  const double one = seconds_for(expert_bytes, rate);
  return {.one = one, .several = one * count, .count = count, .expert_bytes = expert_bytes};
}

ComputeTimes compute_at(uint64_t rate, const MemoryNeeds& needs, const ModelConfig& config, const SpeedShape& shape,
                        uint32_t rows) {
  double dense = 0;
  double moe = 0;
  for (const LayerNeed& layer : needs.layers)
    (config.is_moe(layer.id) ? moe : dense) += layer.uses * seconds_for(layer.bytes, rate);
  uint64_t expert = 0;
  for (const SlotLayout& layout : needs.device_layouts.empty() ? needs.layouts : needs.device_layouts)
    expert = std::max(expert, layout.slot_bytes);
  const double distinct = distinct_experts(shape, rows);
  return {.dense_layer = shape.dense_layers > 0 ? dense / shape.dense_layers : 0,
          .moe_layer = shape.moe_layers > 0 ? moe / shape.moe_layers : 0,
          .experts = distinct * seconds_for(expert, rate),
          .distinct = distinct,
          .head = seconds_for(needs.head_bytes, rate),
          .expert_bytes = static_cast<double>(expert)};
}

}  // namespace dspack::runtime
