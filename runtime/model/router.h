// A router: which experts a token goes to, and with which weights. Most choose by what the layer reads; the first
// layers of DeepSeek-V4 have a table of experts for each token of the vocabulary, so that they are known before the
// pass. Threads: thread-safe (tables are not changed). Errors: those of finding and reading weights; invalid (a table
// that names an expert that there is not). Source: DeepSeek-V3 and DeepSeek-V4 inference/model.py, class Gate.
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

/// The experts of each token: [vocab, top_k].
using ExpertsByToken = std::vector<uint32_t>;

struct RouterWeights {
  Linear scores;                                   // [experts, hidden]
  kernels::Slice bias;                             // [experts]; empty where the model has none
  std::shared_ptr<const ExpertsByToken> by_token;  // null: it chooses by what it reads
};

/// Adds what is read with a layer's other weights. `mlp`: "model.layers.3.mlp".
[[nodiscard]] Result<void> add_router(WeightGroup& group, RouterWeights& weights, const ModelConfig& config,
                                      LayerId layer, const std::string& mlp);
/// Reads the layer's table, if it has one.
[[nodiscard]] Result<void> load_experts_by_token(const LoadContext& context, const ModelConfig& config, LayerId layer,
                                                 RouterWeights& weights, const std::stop_token& stop);

class Router {
 public:
  /// Places for what is made of some rows; see kernels::RouterArgs.
  struct Places {
    kernels::Slice logits, ids, weights;
  };
  explicit Router(const ModelConfig& config) : config_(config) {}

  /// Leaves ids and weights of the rows of x, best first, or in the order of the table. `tokens`: of the rows, where
  /// the layer has a table.
  void route(kernels::Queue& queue, const RouterWeights& weights, const kernels::Rows& x,
             std::span<const uint32_t> tokens, const Places& places, const TraceScope& trace = {}) const;
  /// The experts that these tokens go to: [tokens, top_k]. Precondition: the layer has a table.
  [[nodiscard]] std::vector<uint32_t> known(const RouterWeights& weights, std::span<const uint32_t> tokens) const;

 private:
  const ModelConfig& config_;
};

}  // namespace dspack::runtime
