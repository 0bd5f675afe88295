// Predicts the experts of the next MoE layer before its input is computed: its norm and router are applied to the
// residual stream while this layer's experts are being read; it lacks their output and the next attention. No result of
// the model depends on the prediction.
// Threads: single-thread. Lifetime: borrows the configuration; a forecast borrows the memory that it is written to.
// Errors: none.
#pragma once

#include "kernels/ops.h"
#include "runtime/config/config.h"
#include "runtime/experts/executor.h"
#include "runtime/model/residual.h"
#include "runtime/model/router.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

struct LayerWeights;

class RoutePredictor {
 public:
  /// Reserves scratch for a few rows.
  RoutePredictor(const ModelConfig& config, const Residual& residual, ScratchPlan& plan);

  /// Memory of the host that a prediction is written to.
  [[nodiscard]] uint64_t forecast_bytes() const;
  /// Where a prediction is computed, and the host's memory that it is written to (Device::allocate_host), which is
  /// overwritten by the next one.
  struct Memory {
    kernels::Buffer& scratch;
    kernels::Buffer& forecast;
  };
  /// What is known while a layer's experts are on their way.
  struct Known {
    const LayerWeights& layer;
    kernels::Rows stream;  // [rows, Residual::width], after its attention
    kernels::Slice mix;    // by which its experts' output will join (Residual::mix_in)
    kernels::Rows shared;  // [rows, hidden], of the shared expert; no rows: there is none
  };
  /// `next`: the MoE layer in question. Its experts, which the device is yet to find. Of a pass with many rows only the
  /// first few are looked at.
  [[nodiscard]] ExpertForecast predict(kernels::Queue& queue, const Memory& memory, const Residual& residual,
                                       const Known& known, const LayerWeights& next) const;

 private:
  const ModelConfig& config_;
  Router router_;
  uint64_t stream_at_, mix_at_, hidden_at_, logits_at_, ids_at_, weights_at_;  // in the scratch buffer
};

}  // namespace dspack::runtime
