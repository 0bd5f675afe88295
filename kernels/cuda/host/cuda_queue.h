// The queue of the CUDA device: checks an operation, turns its slices into addresses, and launches its kernels on a
// stream.
// Threads: one thread at a time. Lifetime: owns its stream; borrows only the buffers of enqueued operations. Errors:
// shapes that do not fit, and buffers of another device, are programming errors; if there is no memory for the queue's
// own workspace, the GPU counts as failed (Queue::failure), and no later launch uses the address.
#pragma once

#include <memory>

#include "kernels/cuda/hardware/runtime.h"
#include "kernels/cuda/linear/linear_blas.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// `blas`: null if there is no cuBLASLt.
[[nodiscard]] std::unique_ptr<Queue> make_cuda_queue(const gpu::Properties& properties, Precision precision,
                                                     std::shared_ptr<BlasUse> blas);

}  // namespace dspack::kernels::cuda
