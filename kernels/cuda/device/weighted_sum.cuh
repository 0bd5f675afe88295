// The sum over experts in the router's order, in one place so that all kernels round alike.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/elementwise.h"

namespace dspack::kernels::cuda::device {

/// One value of WeightedSumTask.
__device__ __forceinline__ void sum_weighted(const WeightedSumTask& task, uint64_t row, uint64_t col) {
  float sum = 0;
  for (uint32_t slot = 0; slot < task.top_k; ++slot) {
    const uint64_t part = row * task.top_k + slot;
    sum = gpu::fused_multiply_add(task.weights[part], task.parts.data[part * task.parts.stride + col], sum);
  }
  task.y.data[row * task.y.stride + col] = sum;
}

}  // namespace dspack::kernels::cuda::device
