// The timeline of one layer's experts on a device, and the times that follow from it.
// Threads: single-thread. Lifetime: owns its events. Errors: none.
#pragma once

#include <memory>
#include <vector>

#include "runtime/experts/expert_store.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

/// Events of one layer; their times are known once the queue has run.
struct LayerCourse {
  struct Span {
    std::shared_ptr<kernels::Event> begin, end;
  };
  /// A missing expert that was computed. Null `arrival`: it was in place before its computing was enqueued.
  struct Miss {
    std::shared_ptr<kernels::Event> arrival;
    Span computing;
  };
  Phase phase = Phase::decode;
  Span all = {};
  std::vector<Span> hits = {};  // computing experts that were in place, and the layer's other work
  std::vector<Miss> misses = {};
  double host_seconds = 0;   // CPU computing beside a device
  double last_on_host = 0;   // part of it: the expert that came last of all; 0: the device computed that one
  double host_transfer = 0;  // from the request until the last missing expert was in host memory
  std::vector<LayerCourse> others = {};  // further devices that computed some experts, each by its own clock
};

/// Precondition: the queue has run.
[[nodiscard]] ExpertTimes times_of(const LayerCourse& course);

}  // namespace dspack::runtime
