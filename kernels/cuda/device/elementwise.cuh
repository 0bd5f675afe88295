// Single values of operations on rows, in one place so that the kernels of elementwise.cu and of routed experts round
// alike.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/elementwise.h"

namespace dspack::kernels::cuda::device {

/// A product that is rounded: no compiler makes one operation of it and the sum that it goes into.
__device__ __forceinline__ float rounded_product(float a, float b) {
  return gpu::fused_multiply_add(a, b, -0.0F);
}

/// The activation of every feed-forward network of the family: silu(gate) * up, rounded after each operation. exp
/// overflows to infinity for gates below -88: the result is zero.
__device__ __forceinline__ float silu_times(float gate, float up) {
  return gpu::divide(gate, 1.0F + gpu::exponential(-gate)) * up;
}

/// One value of WeightedSumTask: the sum over experts in the router's order. place_of(part): the row that it is.
template <class PlaceOf>
__device__ __forceinline__ void sum_weighted(const WeightedSumTask& task, uint64_t row, uint64_t col,
                                             const PlaceOf& place_of) {
  float sum = 0;
  for (uint32_t slot = 0; slot < task.top_k; ++slot) {
    const uint64_t part = row * task.top_k + slot;
    sum = gpu::fused_multiply_add(task.weights[part], task.parts.data[place_of(part) * task.parts.stride + col], sum);
  }
  if (task.more.data != nullptr) sum += task.more.data[row * task.more.stride + col];
  float& y = task.y.data[row * task.y.stride + col];
  y = task.adds ? y + sum : sum;
}
__device__ __forceinline__ void sum_weighted(const WeightedSumTask& task, uint64_t row, uint64_t col) {
  sum_weighted(task, row, col, [](uint64_t part) { return part; });
}

/// One row of RmsNormTask, by the first `threads` of a block's threads, whole warps; every thread of the block takes
/// part in the barriers. `sums`: a place for each of these warps, in shared memory.
__device__ __forceinline__ void normalise_row(const RmsNormTask& task, uint64_t row, unsigned threads, float* sums) {
  const float* x = task.x.data + row * task.x.stride;
  float* y = task.y.data + row * task.y.stride;
  const bool takes_part = gpu::thread_index() < threads;
  float squares = 0;
  for (uint32_t i = gpu::thread_index(); takes_part && i < task.cols; i += threads)
    squares = gpu::fused_multiply_add(x[i], x[i], squares);
  squares = sum_of_warp(squares);
  if (takes_part && gpu::lane_index() == 0) sums[gpu::warp_index()] = squares;
  gpu::block_barrier();  // the warps' sums are there
  float sum = 0;
  for (unsigned warp = 0; warp < threads / gpu::kWarpThreads; ++warp)
    sum += sums[warp];
  gpu::block_barrier();  // and have been read before those of the next row come
  const float mean = gpu::divide(sum, static_cast<float>(task.cols));
  const float inverse = gpu::divide(1.0F, gpu::square_root(mean + task.epsilon));
  for (uint32_t i = gpu::thread_index(); takes_part && i < task.cols; i += threads)
    y[i] = x[i] * inverse * task.gain[i];
}

/// Pair `index` of a row of RotateTask, counted through its heads: (real + i imaginary) * (cos + i sin), rounded after
/// each operation. `first`: the position of row 0.
__device__ __forceinline__ void rotate_pair(const RotateTask& task, uint64_t first, uint64_t row, uint64_t index) {
  const uint32_t pairs = task.dim / 2;
  const uint64_t k = index % pairs;
  float* x = task.data + row * task.row_stride + index / pairs * task.head_stride + k * task.step;
  const float* at = task.cos_sin + (first + row) * task.dim + k * 2;
  const float real = x[0];
  const float imaginary = x[task.apart];
  x[0] = rounded_product(real, at[0]) - rounded_product(imaginary, at[1]);
  x[task.apart] = rounded_product(real, at[1]) + rounded_product(imaginary, at[0]);
}
/// The position of row 0.
__device__ __forceinline__ uint64_t first_position(const RotateTask& task) {
  return uint64_t{task.first_position} + (task.live == nullptr ? 0 : *task.live);
}

/// One value of StoreRowsTask. `first`: rows that row 0 goes behind.
__device__ __forceinline__ void store_value(const StoreRowsTask& task, uint64_t first, uint64_t row, uint64_t col) {
  const float value = task.from.data[row * task.from.stride + col];
  const uint64_t place = (first + row) * task.cols + col;
  if (task.dtype == Dtype::f32) {
    static_cast<float*>(task.to)[place] = value;
  } else {
    const uint32_t bits =
        task.dtype == Dtype::bf16 ? gpu::floats_to_bf16s(value, 0.0F) : gpu::floats_to_halves(value, 0.0F);
    static_cast<uint16_t*>(task.to)[place] = static_cast<uint16_t>(bits & 0xffffU);
  }
}

}  // namespace dspack::kernels::cuda::device
