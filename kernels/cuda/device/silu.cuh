// The activation of every feed-forward network of the family, in one place so that all kernels round alike.
#pragma once

#include <dspack_gpu.h>

namespace dspack::kernels::cuda::device {

/// silu(gate) * up, rounded after each operation. exp overflows to infinity for gates below -88: the result is zero.
__device__ __forceinline__ float silu_times(float gate, float up) {
  return gpu::divide(gate, 1.0F + gpu::exponential(-gate)) * up;
}

}  // namespace dspack::kernels::cuda::device
