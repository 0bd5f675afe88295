// The CPU computes experts where the host has them, for a device that lacks them: their input comes down once a layer,
// their results go up part by part.
// Threads: single-thread. Lifetime: borrows host and device; what was handed to the device's queue is borrowed until
// the next layer begins, before which that queue is synchronised. Errors: budget.
#pragma once

#include <memory>

#include "runtime/experts/grouped_executor.h"

namespace dspack::runtime {

class HostExperts {
 public:
  struct Shape {
    uint32_t hidden = 0;
    uint32_t inner = 0;
    uint32_t top_k = 0;
    uint32_t rows = 0;  // of a pass at most
  };
  /// `host`: the CPU's device; `device`: for whose copies memory is pinned.
  [[nodiscard]] static Result<std::unique_ptr<HostExperts>> make(kernels::Device& host, kernels::Device& device,
                                                                 const Shape& shape);
  /// Memory of the host that it takes.
  [[nodiscard]] static uint64_t bytes_for(const kernels::Device& host, const Shape& shape);

  /// Enqueues the copy of a layer's input, [rows, hidden] and dense. It is there when the queue has been synchronised.
  void begin_layer(kernels::Queue& queue, const kernels::Rows& x);
  /// Computes now what an expert in the host's memory gives for some assignments (ExpertGroup::parts), and enqueues the
  /// copies to the rows of `parts` on the device. Seconds of computing.
  double compute(const ExpertWeights& expert, std::span<const uint32_t> assignments, kernels::Queue& queue,
                 const kernels::Rows& parts);

 private:
  HostExperts(kernels::Device& host, const Shape& shape) : host_(host), shape_(shape), queue_(host.make_queue()) {}
  [[nodiscard]] kernels::Rows rows_in(kernels::Buffer& buffer, uint64_t offset, uint32_t rows) const;

  kernels::Device& host_;
  Shape shape_;
  std::unique_ptr<kernels::Queue> queue_;
  std::unique_ptr<kernels::Buffer> rows_;     // pinned: input, then parts
  std::unique_ptr<kernels::Buffer> scratch_;  // of the CPU
  uint32_t input_rows_ = 0;                   // of the present layer
};

}  // namespace dspack::runtime
