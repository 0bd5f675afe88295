// Who hears which experts the routers pick: the recorder of a trace, and whoever looks on.
// Threads: all is called on the thread that runs the model. Errors: those of the listener; `record`'s end the pass.
#pragma once

#include <cstdint>
#include <span>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "runtime/experts/expert_store.h"

namespace dspack::runtime {

class RouteListener {
 public:
  virtual ~RouteListener() = default;
  /// The next pass begins.
  virtual void begin_pass(const ExpertPass& pass) = 0;
  /// Whether the routes of the pass that has begun are wanted: a device that has all experts would keep them to itself.
  [[nodiscard]] virtual bool wants_routes() const { return true; }
  /// What a layer's router picked: [rows, top_k], all rows of the pass at once. Precondition: a pass has begun.
  [[nodiscard]] virtual Result<void> record(LayerId layer, std::span<const uint32_t> ids) = 0;
  /// So many drafted rows of the present pass were accepted.
  virtual void accept_drafts(uint32_t rows) = 0;
};

}  // namespace dspack::runtime
