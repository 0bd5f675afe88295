#include "runtime/experts/backend.h"

#include <algorithm>
#include <map>

namespace dspack::runtime {
namespace {

double seconds_of(const LayerCourse::Span& span) {
  return span.end->seconds_since(*span.begin);
}

}  // namespace

ExpertTimes times_of(const LayerCourse& course) {
  ExpertTimes times{.total = seconds_of(course.all),
                    .hits = 0,
                    .misses = 0,
                    .last_miss = 0,
                    .transfer = course.host_transfer,
                    .host = course.host_seconds};
  for (const LayerCourse::Span& hit : course.hits)
    times.hits += seconds_of(hit);
  for (const LayerCourse::Miss& miss : course.misses) {
    times.last_miss = seconds_of(miss.computing);
    times.misses += times.last_miss;
    if (miss.arrival != nullptr)
      times.transfer = std::max(times.transfer, miss.arrival->seconds_since(*course.all.begin));
  }
  for (const LayerCourse& other : course.others)
    times.others = std::max(times.others, layer_seconds(work_of(times_of(other))));
  if (course.last_on_host > 0) times.last_miss = course.last_on_host;
  return times;
}

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
