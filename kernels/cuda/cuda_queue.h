// The queue of the CUDA device: checks an operation, turns its slices into addresses, launches its kernels on a stream.
// Threads: one thread at a time. Lifetime: owns its stream; borrows nothing but the buffers of what was enqueued.
// Errors: shapes that do not fit, and buffers of another device, are programming errors; a GPU without memory for the
// queue's own workspace has failed (Queue::failure).
#pragma once

#include <memory>

#include "kernels/cuda/linear_blas.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// `blas`: null where there is no cuBLASLt.
[[nodiscard]] std::unique_ptr<Queue> make_cuda_queue(const gpu::Properties& properties, Precision precision,
                                                     std::shared_ptr<BlasUse> blas);

}  // namespace dspack::kernels::cuda
