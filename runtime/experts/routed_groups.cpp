#include "runtime/experts/routed_groups.h"

#include <map>

namespace dspack::runtime {

std::vector<RoutedGroup> group_by_expert(std::span<const uint32_t> chosen, uint32_t top_k, uint32_t first_row) {
  std::map<uint32_t, RoutedGroup> by_expert;
  for (uint32_t part = 0; part < chosen.size(); ++part) {
    RoutedGroup& group = by_expert[chosen[part]];
    const uint32_t row = first_row + part / top_k;
    if (group.parts.empty()) group.demand = {.expert = ExpertId(chosen[part]), .rows = 0, .first_row = row};
    group.demand.last_row = row;
    ++group.demand.rows;
    group.parts.push_back(part);
  }
  std::vector<RoutedGroup> groups;
  groups.reserve(by_expert.size());
  for (auto& [expert, group] : by_expert)
    groups.push_back(std::move(group));
  return groups;
}

}  // namespace dspack::runtime
