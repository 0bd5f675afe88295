// A router: which experts a token goes to, and with which weights. Most choose by the layer's input; the first layers
// of DeepSeek-V4 have a table of experts by token id, so their experts are known before the pass. Threads: thread-safe
// (tables are not changed). Errors: those of finding and reading weights; invalid (a table names an expert that does
// not exist). Source: DeepSeek-V3 and DeepSeek-V4 inference/model.py, class Gate.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/weights/scratch.h"
#include "runtime/weights/trace.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// A table [vocab, top_k] of the experts of each token.
class ExpertsByToken {
 public:
  /// Uploads the table. Errors: budget.
  [[nodiscard]] static Result<std::shared_ptr<const ExpertsByToken>> make(const LoadContext& context,
                                                                          std::vector<uint32_t> experts);
  /// Memory of the device.
  [[nodiscard]] static uint64_t device_bytes(const ModelConfig& config) {
    return uint64_t{config.vocab} * config.top_k * sizeof(uint32_t);
  }
  [[nodiscard]] kernels::Slice on_device() const { return {.buffer = memory_.get(), .offset_bytes = 0}; }
  [[nodiscard]] std::span<const uint32_t> on_host() const;

 private:
  std::unique_ptr<kernels::Buffer> memory_;
  std::vector<uint32_t> copy_;  // where the host cannot address that memory
};

struct RouterWeights {
  Linear scores;                                   // [experts, hidden]
  kernels::Slice bias;                             // [experts]; empty if the layer has none
  std::shared_ptr<const ExpertsByToken> by_token;  // null: chooses by the layer's input
};

/// Adds the weights that are read with the layer's others. `mlp`: "model.layers.3.mlp".
[[nodiscard]] Result<void> add_router(WeightGroup& group, RouterWeights& weights, const ModelConfig& config,
                                      LayerId layer, const std::string& mlp);
/// Reads the layer's table, if it has one.
[[nodiscard]] Result<void> load_experts_by_token(const LoadContext& context, const ModelConfig& config, LayerId layer,
                                                 RouterWeights& weights, const std::stop_token& stop);

class Router {
 public:
  /// Memory for the results of some rows; see kernels::RouterArgs.
  struct Places {
    kernels::Slice logits, ids, weights;
  };
  explicit Router(const ModelConfig& config) : config_(config) {}

  /// Enqueues the routing of the rows of x: writes ids and weights, best first, or in the order of the table. `tokens`:
  /// u32 [rows]; needed only if the layer has a table.
  void route(kernels::Queue& queue, const RouterWeights& weights, const kernels::Rows& x, kernels::Slice tokens,
             const Places& places, const TraceScope& trace = {}) const;
  /// The experts that these tokens go to: [tokens, top_k]. Precondition: the layer has a table.
  [[nodiscard]] std::vector<uint32_t> known(const RouterWeights& weights, std::span<const uint32_t> tokens) const;

 private:
  const ModelConfig& config_;
};

}  // namespace dspack::runtime
