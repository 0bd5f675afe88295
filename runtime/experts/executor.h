// The routed MoE as one operation. The model gives the experts of each token and does not know where they are stored or
// computed.
// Threads: single-thread. Lifetime: slices are borrowed for the call. Errors: those of getting the experts' weights;
// cancelled.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "kernels/ops.h"
#include "runtime/experts/expert_store.h"
#include "runtime/weights/trace.h"

namespace dspack::runtime {

/// What the router decided for some tokens of one layer.
struct RoutedTokens {
  LayerId layer;
  kernels::Rows x;         // [tokens, hidden], the normalised input of the MoE block
  kernels::Slice ids;      // u32 [tokens, top_k], best first
  kernels::Slice weights;  // FP32 [tokens, top_k]
  TraceScope trace = {};   // "model.layers.3.mlp.experts"; each expert is a module of it
  /// Other work of the layer, to be done while experts are on their way. Called once, before `run` succeeds.
  std::function<void()> meanwhile = {};
  /// What else a MoE block does, in one with its experts (kernels::MoeArgs), for an executor that takes it
  /// (takes_rest): then nobody watches, and `meanwhile` is empty.
  struct Rest {
    std::optional<kernels::MlpArgs> shared;  // of x; its rows are as many
    kernels::Rows residual;
  };
  std::optional<Rest> rest = {};
};

/// The experts that the next MoE layer is likely to want, which a device may still be finding out: the host goes on,
/// and looks later.
struct ExpertForecast {
  std::shared_ptr<kernels::Event> computed;        // from when on `experts` may be called
  std::function<std::vector<ExpertId>()> experts;  // most likely first, each once
};

struct ExecutorShape {
  uint32_t hidden = 0;
  uint32_t expert_inner = 0;
  uint32_t experts = 0;  // of a layer
  uint32_t top_k = 0;
  uint32_t wave_tokens = 4096;  // for which an expert is read once; V3: 8 * 7168 FP32 = 229 kB each
};

/// Hears which experts the routers pick: the recorder of a trace, and whoever looks on. Called on the thread that runs
/// the model.
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
  virtual void accept_drafts(uint32_t /*rows*/) {}
};

class ExpertExecutor {
 public:
  virtual ~ExpertExecutor() = default;
  /// A pass begins; what is run until the next call belongs to it.
  virtual void begin_pass(const ExpertPass& pass) = 0;
  /// So many of the pass's drafted rows were accepted.
  virtual void accept_drafts(uint32_t rows) = 0;
  [[nodiscard]] virtual MissCounts miss_counts() const { return {}; }
  /// y[t] = sum over slot, in the router's order, of weights[t, slot] * expert(ids[t, slot])(x[t]). y [tokens, hidden].
  [[nodiscard]] virtual Result<void> run(const RoutedTokens& tokens, const kernels::Rows& y,
                                         const std::stop_token& stop) = 0;
  /// Whether `run` enqueues the same operations whatever the router has picked, reads nothing back and waits for
  /// nothing, so that a pass can be recorded (Queue::record).
  [[nodiscard]] virtual bool can_record() const { return false; }
  /// Whether `run` takes the rest of a block along (RoutedTokens::rest): y is scratch then.
  [[nodiscard]] virtual bool takes_rest() const { return false; }
  /// See ExpertStore.
  [[nodiscard]] virtual bool wants_forecast() const { return false; }
  /// A layer that is yet to be run in this pass will want these experts: [rows, top_k], all rows of the pass. Layers
  /// are announced in the order in which they run.
  virtual void announce(LayerId /*layer*/, std::span<const uint32_t> /*ids*/) {}
  /// The layer is one that is yet to be run in this pass. What the forecast borrows stays until that has begun, or the
  /// next pass.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps the forecast
  virtual void expect(LayerId /*layer*/, ExpertForecast /*forecast*/) {}
};

}  // namespace dspack::runtime
