#include "kernels/cuda/tokens/streams.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/arguments.h"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kReadThreads = 1024;  // per block, at most
constexpr uint32_t kElements = kMaxStreams * kMaxStreams;
constexpr uint32_t kOfLane = kElements / gpu::kWarpThreads;  // elements of C that a lane computes, at most

__device__ __forceinline__ double sigmoid(double x) {
  return 1.0 / (1.0 + gpu::exponential(-x));
}

/// values[i] = value_of(i) for `count` elements, all of which are computed before any is replaced. For a whole warp.
template <class ValueOf>
__device__ __forceinline__ void replace(double* values, uint32_t count, ValueOf value_of) {
  double mine[kOfLane] = {};
#pragma unroll
  for (uint32_t e = 0; e < kOfLane; ++e) {
    const uint32_t i = gpu::lane_index() + e * gpu::kWarpThreads;
    if (i < count) mine[e] = value_of(i);
  }
  gpu::warp_barrier();  // all have been read
#pragma unroll
  for (uint32_t e = 0; e < kOfLane; ++e) {
    const uint32_t i = gpu::lane_index() + e * gpu::kWarpThreads;
    if (i < count) values[i] = mine[e];
  }
  gpu::warp_barrier();  // all have been written
}

/// A row's mixture, from its logits and 1 / sqrt(mean of squares + norm_epsilon): into logits, and pre also into `pre`.
/// For a whole warp; `c`: shared memory for an n x n matrix, whose row j begins at n j.
__device__ __forceinline__ void mix(const ReadStreamsTask& task, float* logits, double inverse, double* c, float* pre) {
  const uint32_t n = task.count, lane = gpu::lane_index();
  const auto epsilon = static_cast<double>(task.epsilon);
  const auto mixed = [&](uint32_t i, uint32_t group) {
    return static_cast<double>(logits[i]) * inverse * static_cast<double>(task.scale[group]) +
           static_cast<double>(task.base[i]);
  };
  if (task.rounds > 0) {
    replace(c, n * n, [&](uint32_t i) { return mixed(2 * n + i, 2); });
    const auto sum_of = [&](uint32_t first, uint32_t step) {
      double sum = 0;
      for (uint32_t k = 0; k < n; ++k)
        sum += c[first + k * step];
      return sum;
    };
    replace(c, n * n, [&](uint32_t i) {
      const uint32_t row = i / n * n;
      double largest = c[row];
      for (uint32_t k = 1; k < n; ++k)
        largest = c[row + k] > largest ? c[row + k] : largest;
      return gpu::exponential(c[i] - largest);
    });
    replace(c, n * n, [&](uint32_t i) { return c[i] / sum_of(i / n * n, 1) + epsilon; });
    replace(c, n * n, [&](uint32_t i) { return c[i] / (sum_of(i % n, n) + epsilon); });
    for (uint32_t round = 1; round < task.rounds; ++round) {
      replace(c, n * n, [&](uint32_t i) { return c[i] / (sum_of(i / n * n, 1) + epsilon); });
      replace(c, n * n, [&](uint32_t i) { return c[i] / (sum_of(i % n, n) + epsilon); });
    }
    for (uint32_t i = lane; i < n * n; i += gpu::kWarpThreads)
      logits[2 * n + i] = static_cast<float>(c[i]);
    if (lane < n) logits[n + lane] = static_cast<float>(2 * sigmoid(mixed(n + lane, 1)));
  }
  if (lane < n) logits[lane] = pre[lane] = static_cast<float>(sigmoid(mixed(lane, 0)) + epsilon);
}

__global__ void __launch_bounds__(kReadThreads) read_streams_kernel(ReadStreamsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const unsigned threads = gpu::block_threads(), thread = gpu::thread_index();
  auto* sums = gpu::shared_memory<double>();  // [threads]
  double* c = sums + threads;
  auto* pre = reinterpret_cast<float*>(c + kElements);
  const uint32_t values = task.count * task.cols;
  const uint32_t width = task.rounds == 0 ? task.count : task.count * (2 + task.count);
  for (uint64_t row = gpu::block_index().x; row < task.rows; row += gpu::grid_blocks().x) {
    const float* streams = task.streams.data + row * task.streams.stride;
    float sum = 0;
    for (uint32_t i = thread; i < values; i += threads)
      sum = gpu::fma_rn(streams[i], streams[i], sum);
    sums[thread] = static_cast<double>(sum);
    gpu::block_barrier();  // all sums are there
    if (gpu::warp_index() == 0) {
      double squares = 0;
      for (uint32_t i = gpu::lane_index(); i < threads; i += gpu::kWarpThreads)
        squares += sums[i];
#pragma unroll
      for (unsigned mask = gpu::kWarpThreads / 2; mask > 0; mask /= 2)
        squares += gpu::shuffle_xor(squares, mask);
      const double inverse = 1.0 / gpu::square_root(squares / values + static_cast<double>(task.norm_epsilon));
      mix(task, task.logits + row * width, inverse, c, pre);
    }
    gpu::block_barrier();  // the mixture is there
    float* y = task.y.data + row * task.y.stride;
    for (uint32_t i = thread; i < task.cols; i += threads) {
      float value = pre[0] * streams[i];
      for (uint32_t j = 1; j < task.count; ++j)
        value += pre[j] * streams[uint64_t{j} * task.cols + i];
      y[i] = value;
    }
  }
}

__global__ void join_streams_kernel(JoinStreamsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint64_t col = uint64_t{gpu::block_index().x} * gpu::block_threads() + gpu::thread_index();
  if (col >= task.cols) return;
  const uint32_t n = task.count;
  for (uint64_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    float* streams = task.streams.data + row * task.streams.stride + col;
    const float* post = task.mix + row * n * (2 + n) + n;
    const float* c = post + n;
    const float y = task.y.data[row * task.y.stride + col];
    float before[kMaxStreams] = {};
#pragma unroll
    for (uint32_t j = 0; j < kMaxStreams; ++j)
      if (j < n) before[j] = streams[uint64_t{j} * task.cols];
    for (uint32_t k = 0; k < n; ++k) {
      float value = post[k] * y;
#pragma unroll
      for (uint32_t j = 0; j < kMaxStreams; ++j)
        if (j < n) value += c[j * n + k] * before[j];
      streams[uint64_t{k} * task.cols] = value;
    }
  }
}

}  // namespace

gpu::LaunchShape choose_read_streams_launch(uint32_t rows, uint64_t values) {
  constexpr unsigned kMaxBlocks = 1U << 20;
  const uint64_t threads = std::clamp<uint64_t>(round_up(values, gpu::kWarpThreads), gpu::kWarpThreads, kReadThreads);
  return {.grid_x = std::clamp(rows, 1U, kMaxBlocks),
          .threads = static_cast<unsigned>(threads),
          .shared_bytes = static_cast<unsigned>((threads + kElements) * sizeof(double) + kMaxStreams * sizeof(float))};
}

void run_read_streams(gpu::Stream& stream, const ReadStreamsTask& task) {
  gpu::launch_overlapping(stream, choose_read_streams_launch(task.rows, uint64_t{task.count} * task.cols),
                          read_streams_kernel, task);
}

void run_join_streams(gpu::Stream& stream, const JoinStreamsTask& task) {
  gpu::launch_overlapping(stream, choose_rows_launch(task.rows, task.cols), join_streams_kernel, task);
}

}  // namespace dspack::kernels::cuda
