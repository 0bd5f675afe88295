// Predicts the experts of the next MoE layer before its input is computed: applies that layer's norm and router to the
// residual stream while this layer's experts are being read. The stream still lacks their output and the next
// attention. No result of the model depends on the prediction.
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

  /// Size of the host memory that a prediction is written to.
  [[nodiscard]] uint64_t forecast_bytes() const;
  /// `scratch`: where a prediction is computed. `forecast`: host memory that it is written to (Device::allocate_host);
  /// the next prediction overwrites it.
  struct Memory {
    kernels::Buffer& scratch;
    kernels::Buffer& forecast;
  };
  /// Values known while a layer's experts are being read.
  struct Known {
    const LayerWeights& layer;
    kernels::Rows stream;  // [rows, Residual::width], after the layer's attention
    kernels::Slice mix;    // with which the experts' output will join (Residual::mix_in)
    kernels::Rows shared;  // [rows, hidden], the shared expert's output; no rows: none
  };
  /// Enqueues the prediction of the experts of `next`, a MoE layer; the forecast can be read once the device has
  /// computed it. In a pass with many rows only the first few are used.
  [[nodiscard]] ExpertForecast predict(kernels::Queue& queue, const Memory& memory, const Residual& residual,
                                       const Known& known, const LayerWeights& next) const;

 private:
  const ModelConfig& config_;
  Router router_;
  uint64_t stream_at_, mix_at_, hidden_at_, logits_at_, ids_at_, weights_at_;  // in the scratch buffer
};

}  // namespace dspack::runtime
