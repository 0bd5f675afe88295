// Single values of operations on rows, shared so that the kernels of elementwise.cu and of routed experts round alike.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels::cuda::device {

/// A rounded product, which the compiler cannot contract with a following sum.
__device__ __forceinline__ float rounded_product(float a, float b) {
  return gpu::fma_rn(a, b, -0.0F);
}

/// The activation of every feed-forward network of the family: silu(min(gate, limit)) * clamp(up, -limit, limit),
/// rounded after each operation; NaN stays NaN. For gates below -88 exp overflows to infinity and the result is zero.
__device__ __forceinline__ float silu_times(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  const float factor = up > limit ? limit : up < -limit ? -limit : up;
  return gpu::divide(gate, 1.0F + gpu::exponential(-gate)) * factor;
}

/// One value of WeightedSumTask: the sum over experts in the router's order. place_of(part): row of a part.
template <class PlaceOf>
__device__ __forceinline__ void sum_weighted(const WeightedSumTask& task, uint64_t row, uint64_t col,
                                             const PlaceOf& place_of) {
  float sum = 0;
  for (uint32_t slot = 0; slot < task.top_k; ++slot) {
    const uint64_t part = row * task.top_k + slot;
    sum = gpu::fma_rn(task.weights[part], task.parts.data[place_of(part) * task.parts.stride + col], sum);
  }
  if (task.more.data != nullptr) sum += task.more.data[row * task.more.stride + col];
  float& y = task.y.data[row * task.y.stride + col];
  y = task.adds ? y + sum : sum;
}
__device__ __forceinline__ void sum_weighted(const WeightedSumTask& task, uint64_t row, uint64_t col) {
  sum_weighted(task, row, col, [](uint64_t part) { return part; });
}

// RMS norm. A thread has four adjacent values of a row, then four more one round of threads further on; those of a warp
// are a block of rounded values (rounded_rows.h).

inline constexpr unsigned kNormRounds = 2;  // rounds that stay in registers

struct NormGains {
  float4 rounds[kNormRounds];
};

/// kFours: rows and gain are whole 16-byte pieces (has_fours). Zeros for missing values.
template <bool kFours>
__device__ __forceinline__ float4 load_neighbours(const float* row, uint32_t column, uint32_t cols) {
  if constexpr (kFours) return column < cols ? gpu::load_four(row + column) : make_float4(0, 0, 0, 0);
  return make_float4(column < cols ? row[column] : 0.0F, column + 1 < cols ? row[column + 1] : 0.0F,
                     column + 2 < cols ? row[column + 2] : 0.0F, column + 3 < cols ? row[column + 3] : 0.0F);
}
template <bool kFours>
__device__ __forceinline__ void store_neighbours(float* row, uint32_t column, uint32_t cols, const float4& values) {
  if constexpr (kFours) {
    if (column < cols) *reinterpret_cast<float4*>(row + column) = values;
    return;
  }
  if (column < cols) row[column] = values.x;
  if (column + 1 < cols) row[column + 1] = values.y;
  if (column + 2 < cols) row[column + 2] = values.z;
  if (column + 3 < cols) row[column + 3] = values.w;
}

__device__ __forceinline__ uint32_t first_column(unsigned threads, uint32_t cols) {
  return gpu::thread_index() < threads ? gpu::thread_index() * 4 : cols;
}

template <bool kFours>
__device__ __forceinline__ float4 load_gain(const RmsNormTask& task, uint32_t column) {
  if (task.gain == nullptr) return make_float4(1, 1, 1, 1);
  return load_neighbours<kFours>(task.gain, column, task.cols);
}

/// A thread's part of the gain, which no launch computes: it may be read before the previous launch has ended.
template <bool kFours>
__device__ __forceinline__ NormGains load_gains(const RmsNormTask& task, unsigned threads) {
  NormGains gains;
  const uint32_t first = first_column(threads, task.cols);
#pragma unroll
  for (unsigned round = 0; round < kNormRounds; ++round)
    gains.rounds[round] = load_gain<kFours>(task, first + round * threads * 4);
  return gains;
}

__device__ __forceinline__ float add_squares(const float4& x, float sum) {
  sum = gpu::fma_rn(x.x, x.x, sum);
  sum = gpu::fma_rn(x.y, x.y, sum);
  sum = gpu::fma_rn(x.z, x.z, sum);
  return gpu::fma_rn(x.w, x.w, sum);
}

__device__ __forceinline__ float4 add_each(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// The sum over the warps of a block, in every thread: warps 16 apart are added, then 8, 4, 2, 1, of 32 warps, missing
/// ones counting as 0. `sums`: 32 places in shared memory.
__device__ __forceinline__ float sum_of_warps(float of_warp, unsigned warps, float* sums) {
  constexpr unsigned kFours = 8;
  if (gpu::lane_index() == 0 && gpu::warp_index() < warps) sums[gpu::warp_index()] = of_warp;
  if (gpu::thread_index() >= warps && gpu::thread_index() < 4 * kFours) sums[gpu::thread_index()] = 0.0F;
  gpu::block_barrier();  // the warps' sums are stored
  float4 fours[kFours];
#pragma unroll
  for (unsigned i = 0; i < kFours; ++i)
    fours[i] = gpu::load_four(sums + 4 * i);
#pragma unroll
  for (unsigned apart = kFours / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (unsigned i = 0; i < apart; ++i)
      fours[i] = add_each(fours[i], fours[i + apart]);
  }
  return (fours[0].x + fours[0].z) + (fours[0].y + fours[0].w);
}

/// Normalises one row of RmsNormTask with the first `threads` threads of a block, whole warps. Every thread of the
/// block takes part in the barrier, and must pass another before the next row. `sums`: as above. All lanes of a warp
/// call store(column, values) with four adjacent values of y, up to a multiple of the warp's 128; zeros after the row.
template <bool kFours, class Store>
__device__ __forceinline__ void normalise_row(const RmsNormTask& task, uint64_t row, unsigned threads, float* sums,
                                              const NormGains& gains, Store store) {
  constexpr uint32_t kOfWarp = 4 * gpu::kWarpThreads;
  const float* x = task.x.data + row * task.x.stride;
  float* y = task.y.data + row * task.y.stride;
  const uint32_t first = first_column(threads, task.cols);
  const uint32_t turn = threads * 4;
  float4 values[kNormRounds];
#pragma unroll
  for (unsigned round = 0; round < kNormRounds; ++round)
    values[round] = load_neighbours<kFours>(x, first + round * turn, task.cols);
  float squares = 0;
#pragma unroll
  for (unsigned round = 0; round < kNormRounds; ++round)
    squares = add_squares(values[round], squares);
  for (uint32_t column = first + kNormRounds * turn; column < task.cols; column += turn)
    squares = add_squares(load_neighbours<kFours>(x, column, task.cols), squares);
  const float sum = sum_of_warps(gpu::sum_of_warp(squares), threads / gpu::kWarpThreads, sums);
  const float mean = gpu::divide(sum, static_cast<float>(task.cols));
  const float inverse = gpu::divide(1.0F, gpu::square_root(mean + task.epsilon));
  const auto finish = [&](uint32_t column, const float4& from, const float4& gain) {
    const float4 to = make_float4(from.x * inverse * gain.x, from.y * inverse * gain.y, from.z * inverse * gain.z,
                                  from.w * inverse * gain.w);
    store_neighbours<kFours>(y, column, task.cols, to);
    store(column, to);
  };
  if (gpu::thread_index() >= threads) return;
  const uint32_t end = (task.cols + kOfWarp - 1) / kOfWarp * kOfWarp;
#pragma unroll
  for (unsigned round = 0; round < kNormRounds; ++round) {
    if (first + round * turn < end) finish(first + round * turn, values[round], gains.rounds[round]);
  }
  for (uint32_t column = first + kNormRounds * turn; column < end; column += turn) {
    finish(column, load_neighbours<kFours>(x, column, task.cols), load_gain<kFours>(task, column));
  }
}

/// A pair that RotateTask rotates.
struct RotatedPair {
  float* at = nullptr;
  uint32_t apart = 0;
  float real = 0;
  float imaginary = 0;
  float cosine = 0;
  float sine = 0;

  /// (real + i imaginary) * (cos + i sin), rounded after each operation; stores the result.
  __device__ __forceinline__ void turn() {
    const float x = rounded_product(real, cosine) - rounded_product(imaginary, sine);
    imaginary = rounded_product(real, sine) + rounded_product(imaginary, cosine);
    real = x;
    at[0] = real;
    at[apart] = imaginary;
  }
};

/// Pair `index` of a row, numbered across its heads. `first`: the position of row 0.
__device__ __forceinline__ RotatedPair load_pair(const RotateTask& task, uint64_t first, uint64_t row, uint32_t index) {
  const uint32_t pairs = task.dim / 2;
  const uint32_t head = task.heads == 1 ? 0 : index / pairs;
  const uint32_t k = index - head * pairs;
  float* x = task.data + row * task.row_stride + head * task.head_stride + uint64_t{k} * task.step;
  const float* turn = task.cos_sin + (first + row) * task.dim + uint64_t{k} * 2;
  return {.at = x,
          .apart = task.apart,
          .real = x[0],
          .imaginary = x[task.apart],
          .cosine = turn[0],
          .sine = task.inverse ? -turn[1] : turn[1]};
}
__device__ __forceinline__ void rotate_pair(const RotateTask& task, uint64_t first, uint64_t row, uint64_t index) {
  load_pair(task, first, row, static_cast<uint32_t>(index)).turn();
}
/// The position of row 0.
__device__ __forceinline__ uint64_t first_position(const RotateTask& task) {
  return uint64_t{task.first_position} + (task.live == nullptr ? 0 : *task.live);
}

/// Clamps a finite number to F16's range; infinities are kept (kernels/ops.h, store_rows).
__device__ __forceinline__ float within_half(float value) {
  constexpr float kLargestFloat = 0x1.fffffep127F;
  const float magnitude = fabsf(value);
  return magnitude > kLargestHalf && magnitude <= kLargestFloat ? copysignf(kLargestHalf, value) : value;
}
/// Stores a value of StoreRowsTask in its type. `place`: index in `to`.
__device__ __forceinline__ void store_as(const StoreRowsTask& task, uint64_t place, float value) {
  if (task.dtype == Dtype::f32) {
    static_cast<float*>(task.to)[place] = value;
  } else {
    const uint32_t bits =
        task.dtype == Dtype::bf16 ? gpu::floats_to_bf16s(value, 0.0F) : gpu::floats_to_halves(within_half(value), 0.0F);
    static_cast<uint16_t*>(task.to)[place] = static_cast<uint16_t>(bits & 0xffffU);
  }
}
/// Stores `count` of four adjacent values, at once if all four exist and are aligned.
__device__ __forceinline__ void store_four_as(const StoreRowsTask& task, uint64_t place, const float4& values,
                                              uint32_t count) {
  const bool is_half = task.dtype != Dtype::f32;
  void* to = static_cast<unsigned char*>(task.to) + place * (is_half ? sizeof(uint16_t) : sizeof(float));
  const bool is_aligned = reinterpret_cast<uintptr_t>(to) % (is_half ? sizeof(uint2) : sizeof(float4)) == 0;
  if (count < 4 || !is_aligned) {
    const float each[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if (i < count) store_as(task, place + i, each[i]);
    }
  } else if (!is_half) {
    *static_cast<float4*>(to) = values;
  } else if (task.dtype == Dtype::bf16) {
    *static_cast<uint2*>(to) =
        make_uint2(gpu::floats_to_bf16s(values.x, values.y), gpu::floats_to_bf16s(values.z, values.w));
  } else {
    *static_cast<uint2*>(to) = make_uint2(gpu::floats_to_halves(within_half(values.x), within_half(values.y)),
                                          gpu::floats_to_halves(within_half(values.z), within_half(values.w)));
  }
}
/// Stores one value of StoreRowsTask. `first`: row offset of row 0.
__device__ __forceinline__ void store_value(const StoreRowsTask& task, uint64_t first, uint64_t row, uint64_t col) {
  const uint64_t to = task.ring_rows == 0 ? first + row : (first + row) % task.ring_rows;
  store_as(task, to * task.cols + col, task.from.data[row * task.from.stride + col]);
}

}  // namespace dspack::kernels::cuda::device
