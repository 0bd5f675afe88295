// The counts of a server in the text form of Prometheus, version 0.0.4.
// Threads: thread-safe (a pure function). Errors: none.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/generate/scheduler.h"

namespace dspack::runtime {

/// `request_bytes`: memory now held by requests (request_memory.h).
[[nodiscard]] std::string metrics_text(const SchedulerCounts& counts, uint64_t request_bytes);

}  // namespace dspack::runtime
