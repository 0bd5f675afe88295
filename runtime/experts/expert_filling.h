// All experts read before a run, into the memory of one device or several that has room for each.
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

/// Where experts go as they are read.
struct ExpertSink {
  /// Begins to copy an expert, whose lease it holds until that has ended.
  std::function<void(LayerId, const ExpertDemand&, ExpertLease)> keep;
  /// Waits for the oldest copy, and gives its lease back. False: none is under way.
  std::function<bool()> release_oldest;
};

/// Reads all experts of `store`, layer by layer, while copies of others are under way; when this returns all have
/// ended. A pass of its own, counted as a prompt's. `progress`, which has been told of the beginning, hears of each
/// expert.
[[nodiscard]] Result<void> read_all_experts(ExpertStore& store, const DeviceExperts& experts, const ExpertSink& sink,
                                            format::Progress& progress, const std::stop_token& stop);

/// Copies each to the backend that it belongs to (ExpertBackend::keep). `progress`: nullptr: not wanted.
[[nodiscard]] Result<void> fill_devices(ExpertStore& store, std::span<const std::unique_ptr<ExpertBackend>> backends,
                                        const DeviceExperts& experts, format::Progress* progress,
                                        const std::stop_token& stop);

}  // namespace dspack::runtime
