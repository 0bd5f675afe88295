// `dsrun replay --html`: recorded routes as one page for a browser, with the map of experts pass by pass, and what
// every policy would miss over slots beside the optimum. Its data, as JSON:
//   about   what the trace holds, in words; `results`: as --json has it
//   rows    [[layer, experts], ...]
//   frames  [{"pass", "passes", "rows", "prompt", "picked": [[row, [expert, times, ...]], ...]}, ...]: `passes` passes
//           from `pass` on, `rows` tokens; one each, or several where the page would become too large
// Threads: pure functions. Errors: unsupported (more experts than a map of them can show).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "runtime/replay/report.h"

namespace dspack::runtime {

/// Bounds of a page, whatever the trace: V3 has 14,848 experts, and 500,000 entries are some 4 MB.
struct TracePageLimits {
  uint64_t experts = 200'000;
  uint64_t frames = 4'000;
  uint64_t entries = 500'000;  // of `picked`, in all frames
};

[[nodiscard]] Result<format::Json> trace_page_data(const Workload& workload, std::span<const ReplayReport> reports,
                                                   const TracePageLimits& limits = {});

/// `name`: of the trace; a page is there to be passed on, so without its folder.
[[nodiscard]] Result<std::string> trace_page(std::string_view name, const Workload& workload,
                                             std::span<const ReplayReport> reports);

// The files of runtime/replay/page/; the build makes them constants (cmake/embed.cmake).
extern const std::string_view kTracePageFrame;
extern const std::string_view kTracePageStyle;
extern const std::string_view kTracePageScript;

}  // namespace dspack::runtime
