// Layers by experts, as a page is told of them: where each expert lies, and how often it was picked since the page was
// last told. runtime/page/expert_map.js draws it.
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

  /// A router picked the expert; nothing of layers and experts that the map lacks.
  void pick(ExpertKey key, uint32_t times);
  void place(const ExpertResidence& places);

  /// [{"layer", "places"}, ...]: a digit for each expert: 0 not in memory, 1 in the host's, 2 in the device's.
  [[nodiscard]] format::Json rows() const;
  /// [[row, [expert, times, ...]], ...] of rows with any, since the last call.
  [[nodiscard]] format::Json take_picked();
  /// [[row, [expert, place, ...]], ...] of experts that lie elsewhere than at the last call.
  [[nodiscard]] format::Json take_moved();
  [[nodiscard]] uint64_t in_host() const { return in_host_; }
  [[nodiscard]] uint64_t in_device() const { return in_device_; }

 private:
  struct Row {
    LayerId layer;
    std::vector<uint32_t> picked;  // times, by expert
    bool has_picks = false;
    std::string places, told;  // digits, by expert
  };
  uint64_t put(const std::vector<ExpertKey>& keys, char place);

  std::vector<Row> rows_;
  std::unordered_map<uint32_t, size_t> row_of_layer_;
  uint64_t in_host_ = 0, in_device_ = 0;  // experts
};

}  // namespace dspack::runtime
