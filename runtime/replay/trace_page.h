// `dsrun replay --html`: recorded routes as one web page, with the map of experts pass by pass, and the misses of every
// policy over slots next to the optimum's. Its data, as JSON:
//   about   a description of the trace in words; `results`: as in --json
//   rows    [[layer, experts], ...]
//   frames  [{"pass", "passes", "rows", "prompt", "picked": [[row, [expert, times, ...]], ...]}, ...]: `passes` passes
//           from `pass` on, `rows` tokens; one pass each, or several if the page would become too large
// Threads: pure functions. Errors: unsupported (more experts than a map of them can show).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "runtime/replay/report.h"

namespace dspack::runtime {

/// Limits of a page, whatever the trace: V3 has 14,848 experts, and 500,000 entries are some 4 MB.
struct TracePageLimits {
  uint64_t experts = 200'000;
  uint64_t frames = 4'000;
  uint64_t entries = 500'000;  // entries of `picked` in all frames
};

[[nodiscard]] Result<format::Json> trace_page_data(const Workload& workload, std::span<const ReplayReport> reports,
                                                   const TracePageLimits& limits = {});

/// `name`: the trace's file name, without its folder, since pages are passed on.
[[nodiscard]] Result<std::string> trace_page(std::string_view name, const Workload& workload,
                                             std::span<const ReplayReport> reports);

// The files of runtime/replay/page/; the build makes them constants (cmake/embed.cmake).
extern const std::string_view kTracePageFrame;
extern const std::string_view kTracePageStyle;
extern const std::string_view kTracePageScript;

}  // namespace dspack::runtime
