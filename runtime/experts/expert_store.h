// Where the weights of routed experts come from. The users lease experts; tiers, eviction and transfers are behind
// this. Threads: single-thread. Lifetime: a lease keeps its expert's weights in place until it is dropped; it may
// outlive a later acquire, but not the store. Errors: those of reading, with layer and expert; budget (no memory for
// it).
#pragma once

#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "runtime/weights/linear.h"

namespace dspack::runtime {

/// One routed expert: down(silu(gate x) * (up x)).
struct ExpertWeights {
  std::unique_ptr<kernels::Buffer> memory;
  Linear gate;  // [expert_inner, hidden]
  Linear up;    // [expert_inner, hidden]
  Linear down;  // [hidden, expert_inner]
};

/// Shared, because the pin is the point: a store may let go of an expert while work that uses it is still running.
using ExpertLease = std::shared_ptr<const ExpertWeights>;

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  /// Leases of `experts` of a layer, in the same order.
  [[nodiscard]] virtual Result<std::vector<ExpertLease>> acquire(LayerId layer, std::span<const ExpertId> experts,
                                                                 const std::stop_token& stop) = 0;
};

}  // namespace dspack::runtime
