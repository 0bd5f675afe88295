// Computes single experts module by module, so that a trace gets the input and output of each module. The results have
// the bits of Queue::run_expert_parts.
// Threads: single-thread. Lifetime: borrows the queue. Errors: budget.
#pragma once

#include <memory>
#include <vector>

#include "runtime/experts/backend.h"
#include "runtime/weights/trace.h"

namespace dspack::runtime {

class ExpertTracer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<ExpertTracer>> make(kernels::Device& device, kernels::Queue& queue,
                                                                  uint32_t hidden, uint32_t inner);

  /// Begins a layer. `chosen`: the experts of all of its tokens.
  void begin_layer(const TraceScope& scope, std::span<const uint32_t> chosen);
  /// Enqueues computing one expert and reports its modules. Its weights are in memory of the queue's device.
  void compute(const ExpertWave& wave, const RoutedGroup& group, const ExpertWeights& weights);

  [[nodiscard]] uint64_t scratch_bytes() const { return scratch_->size_bytes(); }

 private:
  ExpertTracer(kernels::Queue& queue, uint32_t hidden, uint32_t inner)
      : queue_(queue), hidden_(hidden), inner_(inner) {}

  kernels::Queue& queue_;
  uint32_t hidden_, inner_;
  TraceScope scope_;
  std::vector<uint32_t> tokens_;  // tokens of the layer, by expert
  std::unique_ptr<kernels::Buffer> scratch_;
  kernels::Rows input_, gate_, up_, output_;  // one tile
};

}  // namespace dspack::runtime
