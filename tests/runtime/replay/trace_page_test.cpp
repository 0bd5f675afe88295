#include "runtime/replay/trace_page.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/replay/lab.h"

namespace dspack::runtime::trace_page_test {
namespace {

uint64_t times_of(const format::Json& frames) {
  uint64_t times = 0;
  for (const format::Json& frame : frames)
    for (const format::Json& row : frame["picked"])
      for (size_t i = 1; i < row[1].size(); i += 2)
        times += row[1][i].get<uint64_t>();
  return times;
}

TEST_CASE("trace page: passes share frames until they fit, and no route is lost") {
  const Workload workload = lab::random_decode(3, 16, 4, 50, 1);
  for (const auto& [limits, passes] : {std::pair<TracePageLimits, uint64_t>({}, 1),
                                       {{.frames = 49}, 2},
                                       {{.frames = 25}, 2},
                                       {{.frames = 24}, 4},
                                       {{.entries = 48}, 64}}) {
    CAPTURE(limits.frames);
    CAPTURE(limits.entries);
    const auto data = trace_page_data(workload, {}, limits);
    REQUIRE(data);
    const format::Json& frames = (*data)["frames"];
    CHECK(frames[0]["passes"] == std::min<uint64_t>(passes, 50));
    CHECK(frames.size() == (50 + passes - 1) / passes);
    CHECK(times_of(frames) == 50 * 3 * 4);
  }
}

TEST_CASE("trace page: more experts than a map shows are refused") {
  const Workload workload = lab::random_decode(3, 16, 4, 5, 1);
  const auto data = trace_page_data(workload, {}, {.experts = 47});
  REQUIRE(!data);
  CHECK(data.error().kind == ErrorKind::unsupported);
  CHECK(trace_page_data(workload, {}, {.experts = 48}));
}

}  // namespace
}  // namespace dspack::runtime::trace_page_test
