// Recorded routes. Input: a header's line, then the lines of a trace.
#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/trace/route_format.h"
#include "runtime/replay/report.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using namespace dspack::runtime;

namespace {

// More takes long, and shows no more.
constexpr size_t kReplayedSteps = 64;

void check_replay(const Workload& workload) {
  const uint64_t slots = 1 + workload.experts() / 4;
  const ReplayReport report = replay(workload, slots, eviction_policies());
  for (const PolicyOutcome& outcome : report.outcomes) {
    DSPACK_CHECK(slots < workload.floor() || outcome.result.misses() >= report.outcomes.back().result.misses() ||
                     workload.tokens(Phase::prefill) > 0,
                 "a policy that misses less than the optimum");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const auto header = parse_route_header(fuzz::take(text, '\n'));
  if (!header) {
    fuzz::check_refusal(header.error());
    return 0;
  }
  const auto again = parse_route_header(to_line(*header));
  DSPACK_CHECK(again.has_value() && *again == *header, "a header that reads differently");
  Workload workload(*header);
  for (const std::string_view text_line : fuzz::split(text, '\n')) {
    const auto line = parse_route_line(text_line, *header);
    if (!line) {
      fuzz::check_refusal(line.error());
      continue;
    }
    const auto* routed = std::get_if<RoutedLayer>(&*line);
    const std::string written =
        routed != nullptr ? to_line(*routed, header->top_k) : to_line(std::get<AcceptedDrafts>(*line));
    const auto read = parse_route_line(written, *header);
    DSPACK_CHECK(read.has_value() && *read == *line, "a line that reads differently");
    if (routed == nullptr || workload.steps().size() > kReplayedSteps) continue;
    if (!workload.steps().empty() && routed->pass < workload.steps().back().pass) continue;
    DSPACK_CHECK(workload.add(*line).has_value(), "a short trace that is too long");
  }
  if (!workload.steps().empty() && workload.experts() < 4096) check_replay(workload);
  return 0;
}
