// When the things of one layer's experts happened on a device, and what came of it.
// Threads: single-thread. Lifetime: owns its events. Errors: none.
#pragma once

#include <memory>
#include <vector>

#include "runtime/experts/expert_store.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

/// When things of a layer happened; times are known once the queue has run.
struct LayerCourse {
  struct Span {
    std::shared_ptr<kernels::Event> begin, end;
  };
  /// A missing expert that was computed; `arrival` is null where it was in place already.
  struct Miss {
    std::shared_ptr<kernels::Event> arrival;
    Span computing;
  };
  Phase phase = Phase::decode;
  Span all = {};
  std::vector<Span> hits = {};  // computing experts that were in place, and the layer's other work
  std::vector<Miss> misses = {};
  double host_seconds = 0;               // that the CPU computed beside a device
  double last_on_host = 0;               // of these: the expert that came last of all; 0: the device computed that one
  double host_transfer = 0;              // until the last missing expert was in the host's memory
  std::vector<LayerCourse> others = {};  // of further devices that have computed some, each by its own clock
};

/// Precondition: the queue has run.
[[nodiscard]] ExpertTimes times_of(const LayerCourse& course);

}  // namespace dspack::runtime
