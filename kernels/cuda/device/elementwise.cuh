// Single values of operations on rows, in one place so that the kernels of elementwise.cu and of routed experts round
// alike.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/elementwise.h"

namespace dspack::kernels::cuda::device {

/// The activation of every feed-forward network of the family: silu(gate) * up, rounded after each operation. exp
/// overflows to infinity for gates below -88: the result is zero.
__device__ __forceinline__ float silu_times(float gate, float up) {
  return gpu::divide(gate, 1.0F + gpu::exponential(-gate)) * up;
}

/// One value of WeightedSumTask: the sum over experts in the router's order.
__device__ __forceinline__ void sum_weighted(const WeightedSumTask& task, uint64_t row, uint64_t col) {
  float sum = 0;
  for (uint32_t slot = 0; slot < task.top_k; ++slot) {
    const uint64_t part = row * task.top_k + slot;
    sum = gpu::fused_multiply_add(task.weights[part], task.parts.data[part * task.parts.stride + col], sum);
  }
  task.y.data[row * task.y.stride + col] = sum;
}

}  // namespace dspack::kernels::cuda::device
