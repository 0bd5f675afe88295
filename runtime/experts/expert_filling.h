// Reads all experts before a run, into the memory of one or more devices that have room for them.
// Threads: single-thread. Lifetime: borrows its arguments for the call. Errors: those of reading; cancelled.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>

#include "format/progress.h"
#include "runtime/experts/backend.h"
#include "runtime/experts/expert_layout.h"

namespace dspack::runtime {

/// Receives experts as they are read.
struct ExpertSink {
  /// Starts copying an expert, and holds its lease until the copy has ended.
  std::function<void(LayerId, const ExpertDemand&, ExpertLease)> keep;
  /// Waits for the oldest copy and releases its lease. False: no copy is under way.
  std::function<bool()> release_oldest;
};

/// Reads all experts of `store`, layer by layer, while others are copied; all copies have ended when it returns. Runs
/// as a separate pass, counted as a prompt's. `progress` must have been started; it is told of each expert.
[[nodiscard]] Result<void> read_all_experts(ExpertStore& store, const DeviceExperts& experts, const ExpertSink& sink,
                                            format::Progress& progress, const std::stop_token& stop);

/// Copies each expert to the backend that it belongs to (ExpertBackend::keep). `progress` may be null.
[[nodiscard]] Result<void> fill_devices(ExpertStore& store, std::span<const std::unique_ptr<ExpertBackend>> backends,
                                        const DeviceExperts& experts, format::Progress* progress,
                                        const std::stop_token& stop);

}  // namespace dspack::runtime
