// Layers by experts, as a web page shows them: where each expert is, and how often it was picked since the last update.
// runtime/page/expert_map.js draws it.
// Threads: single-thread (the owner's lock). Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/json.h"
#include "runtime/experts/routed_experts.h"
#include "runtime/experts/trace/route_format.h"

namespace dspack::runtime {

class ExpertMap {
 public:
  explicit ExpertMap(const std::vector<RoutedLayerShape>& layers);

  /// Counts picks of the expert by a router. Layers and experts that the map lacks are ignored.
  void pick(ExpertKey key, uint32_t times);
  void place(const ExpertResidence& places);

  /// [{"layer", "places"}, ...]: one digit per expert: 0 not in memory, 1 in host memory, 2 in device memory; as of the
  /// last take_moved.
  [[nodiscard]] format::Json rows() const;
  /// [[row, [expert, times, ...]], ...]: the picks since the last call, without rows that have none.
  [[nodiscard]] format::Json take_picked();
  /// [[row, [expert, place, ...]], ...]: the experts whose place has changed since the last call.
  [[nodiscard]] format::Json take_moved();
  [[nodiscard]] uint64_t in_host() const { return in_host_; }
  [[nodiscard]] uint64_t in_device() const { return in_device_; }

 private:
  struct Row {
    LayerId layer;
    std::vector<uint32_t> picked;  // times, by expert
    bool has_picks = false;
    std::string places, told;  // digits by expert: now, and at the last take_moved
  };
  uint64_t put(const std::vector<ExpertKey>& keys, char place);

  std::vector<Row> rows_;
  std::unordered_map<uint32_t, size_t> row_of_layer_;
  uint64_t in_host_ = 0, in_device_ = 0;  // experts
};

}  // namespace dspack::runtime
