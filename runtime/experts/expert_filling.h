// All experts brought into devices' memory before a run, where there is room for each in that of its device.
// Threads: single-thread. Lifetime: borrows its arguments for the call. Errors: those of reading; cancelled.
#pragma once

#include <memory>
#include <span>
#include <stop_token>

#include "format/progress.h"
#include "runtime/experts/backend.h"
#include "runtime/experts/expert_layout.h"

namespace dspack::runtime {

/// Reads them layer by layer, and copies each to the backend that it belongs to (ExpertBackend::keep), while the next
/// ones are read. A pass of its own, counted as a prompt's. `progress` hears of each; nullptr: not wanted.
[[nodiscard]] Result<void> fill_devices(ExpertStore& store, std::span<const std::unique_ptr<ExpertBackend>> backends,
                                        const DeviceExperts& experts, format::Progress* progress,
                                        const std::stop_token& stop);

}  // namespace dspack::runtime
