#include "runtime/replay/trace_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "format/html_page.h"
#include "runtime/experts/expert_map.h"

namespace dspack::runtime {
namespace {

/// The layers that occur in the trace; its header may list more.
std::vector<RoutedLayerShape> seen_layers(const Workload& workload) {
  std::set<LayerId> seen;
  for (const Workload::Step& step : workload.steps())
    seen.insert(step.layer);
  std::vector<RoutedLayerShape> layers = workload.header().layers;
  std::erase_if(layers, [&](const RoutedLayerShape& shape) { return !seen.contains(shape.layer); });
  return layers;
}

/// Groups passes into frames of `passes` passes.
class FrameMaker {
 public:
  FrameMaker(const std::vector<RoutedLayerShape>& layers, uint64_t passes, const TracePageLimits& limits)
      : map_(layers), passes_(passes), limits_(limits) {}

  /// nullopt: the frames exceed the limits.
  std::optional<format::Json> make(const Workload& workload) {
    std::optional<uint64_t> pass;
    for (const Workload::Step& step : workload.steps()) {
      if (step.accepted) continue;  // its experts were counted with the pass
      if (pass != step.pass) {
        if (held_ == passes_ && !finish()) return std::nullopt;
        if (held_ == 0) frame_ = {{"pass", step.pass}, {"prompt", step.phase == Phase::prefill}};
        ++held_;
        rows_ += step.rows;
        pass = step.pass;
      }
      for (const ExpertDemand& demand : workload.demands(step))
        map_.pick({.layer = step.layer, .expert = demand.expert}, demand.rows);
    }
    if (held_ > 0 && !finish()) return std::nullopt;
    return std::move(frames_);
  }

 private:
  bool finish() {
    frame_["passes"] = held_;
    frame_["rows"] = rows_;
    frame_["picked"] = map_.take_picked();
    for (const format::Json& row : frame_["picked"])
      entries_ += row[1].size() / 2;
    frames_.push_back(std::move(frame_));
    held_ = rows_ = 0;
    return entries_ <= limits_.entries && frames_.size() <= limits_.frames;
  }

  ExpertMap map_;
  uint64_t passes_;
  TracePageLimits limits_;
  format::Json frames_ = format::Json::array();
  format::Json frame_;
  uint64_t held_ = 0, rows_ = 0;  // passes and tokens of the frame under way
  uint64_t entries_ = 0;
};

}  // namespace

Result<format::Json> trace_page_data(const Workload& workload, std::span<const ReplayReport> reports,
                                     const TracePageLimits& limits) {
  const std::vector<RoutedLayerShape> layers = seen_layers(workload);
  if (workload.experts() > limits.experts) {
    return Error{ErrorKind::unsupported, fmt::format("--html: the trace is of {} experts, and a map shows {} at most",
                                                     workload.experts(), limits.experts)};
  }
  format::Json rows = format::Json::array();
  for (const RoutedLayerShape& shape : layers)
    rows.push_back({shape.layer.value, shape.experts});
  // One frame of all passes has at most one entry per expert, so this ends.
  std::optional<format::Json> frames;
  for (uint64_t passes = 1; !frames; passes *= 2)
    frames = FrameMaker(layers, passes, limits).make(workload);
  return format::Json{{"about", describe(workload)},
                      {"rows", std::move(rows)},
                      {"frames", *std::move(frames)},
                      {"results", to_json(workload, reports)}};
}

Result<std::string> trace_page(std::string_view name, const Workload& workload, std::span<const ReplayReport> reports) {
  TRY_ASSIGN(format::Json data, trace_page_data(workload, reports));
  data["name"] = std::string(name);
  return format::html_page({.frame = kTracePageFrame, .style = kTracePageStyle, .script = kTracePageScript}, data);
}

}  // namespace dspack::runtime
