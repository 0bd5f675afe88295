#include "runtime/experts/layer_course.h"

#include <algorithm>

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

}  // namespace dspack::runtime
