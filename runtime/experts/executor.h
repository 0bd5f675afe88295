// The routed MoE as one operation. The model passes the experts of each token, and does not know where they are stored
// or computed.
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

/// The router's decision for some tokens of one layer.
struct RoutedTokens {
  LayerId layer;
  kernels::Rows x;         // [tokens, hidden], the normalised input of the MoE block
  kernels::Slice ids;      // u32 [tokens, top_k], best first
  kernels::Slice weights;  // FP32 [tokens, top_k]
  TraceScope trace = {};   // "model.layers.3.mlp.experts"; each expert is a module of it
  /// Other work of the layer, to overlap with fetching experts. Called once, before `run` succeeds.
  std::function<void()> meanwhile = {};
  /// The rest of a MoE block, fused with its experts (kernels::MoeArgs), if the executor supports that (takes_rest).
  /// Then nothing is traced, and `meanwhile` is empty.
  struct Rest {
    std::optional<kernels::MlpArgs> shared;  // input x, with the same number of rows
    kernels::Rows residual;
  };
  std::optional<Rest> rest = {};
};

/// A forecast of the experts that the next MoE layer is likely to want. A device may still be computing it, so the host
/// does not wait but checks `computed` later.
struct ExpertForecast {
  std::shared_ptr<kernels::Event> computed;        // once it is reached, `experts` may be called
  std::function<std::vector<ExpertId>()> experts;  // most likely first, each once
};

struct ExecutorShape {
  uint32_t hidden = 0;
  uint32_t expert_inner = 0;
  uint32_t experts = 0;  // per layer
  uint32_t top_k = 0;
  uint32_t wave_tokens = 4096;  // an expert is read once per wave; V3: 8 * 7168 FP32 = 229 kB per token
};

/// Receives the experts that the routers pick, for example to record a trace. Called on the thread that runs the model.
class RouteListener {
 public:
  virtual ~RouteListener() = default;
  /// A pass begins.
  virtual void begin_pass(const ExpertPass& pass) = 0;
  /// Whether the routes of the pass that has begun are wanted. If not, a device that has all experts keeps them to
  /// itself.
  [[nodiscard]] virtual bool wants_routes() const { return true; }
  /// Receives the picks of a layer's router: [rows, top_k], all rows of the pass at once. Precondition: a pass has
  /// begun.
  [[nodiscard]] virtual Result<void> record(LayerId layer, std::span<const uint32_t> ids) = 0;
  /// The first `rows` drafted rows of the present pass were accepted.
  virtual void accept_drafts(uint32_t /*rows*/) {}
};

class ExpertExecutor {
 public:
  virtual ~ExpertExecutor() = default;
  /// Begins a pass; every `run` until the next call belongs to it.
  virtual void begin_pass(const ExpertPass& pass) = 0;
  /// The first `rows` drafted rows of the pass were accepted.
  virtual void accept_drafts(uint32_t rows) = 0;
  [[nodiscard]] virtual MissCounts miss_counts() const { return {}; }
  /// y[t] = sum over slot, in the router's order, of weights[t, slot] * expert(ids[t, slot])(x[t]). y [tokens, hidden].
  [[nodiscard]] virtual Result<void> run(const RoutedTokens& tokens, const kernels::Rows& y,
                                         const std::stop_token& stop) = 0;
  /// Whether `run` enqueues the same operations whatever the router picks, reads nothing back and never blocks, so that
  /// a pass can be recorded (Queue::record).
  [[nodiscard]] virtual bool can_record() const { return false; }
  /// Whether `run` also does the rest of a block (RoutedTokens::rest); y is scratch then.
  [[nodiscard]] virtual bool takes_rest() const { return false; }
  /// See ExpertStore.
  [[nodiscard]] virtual bool wants_forecast() const { return false; }
  /// The experts that a later layer of this pass will want: [rows, top_k], all rows of the pass. Announce layers in the
  /// order in which they run.
  virtual void announce(LayerId /*layer*/, std::span<const uint32_t> /*ids*/) {}
  /// A forecast for a later layer of this pass. Memory that it borrows must live until that layer, or the next pass,
  /// begins.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps the forecast
  virtual void expect(LayerId /*layer*/, ExpertForecast /*forecast*/) {}
};

}  // namespace dspack::runtime
