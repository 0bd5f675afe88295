#include "kernels/cuda/tokens/elementwise.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/cuda/tokens/elementwise.cuh"
#include "kernels/cuda/tokens/rounding.cuh"

namespace dspack::kernels::cuda {
namespace {

/// Calls operation(row, col) for this thread's part of the rows and columns.
template <class Operation>
__device__ __forceinline__ void for_each_value(uint32_t rows, uint32_t cols, Operation operation) {
  const uint64_t col = uint64_t{gpu::block_index().x} * gpu::block_threads() + gpu::thread_index();
  if (col >= cols) return;
  for (uint64_t row = gpu::block_index().y; row < rows; row += gpu::grid_blocks().y)
    operation(row, col);
}

/// Normalises rows, and rounds them if products on tensor cores follow.
template <bool kFours>
__global__ void __launch_bounds__(kMaxNormThreads) rms_norm_kernel(RmsNormTask task) {
  gpu::launch_dependents();
  const device::NormGains gains = device::load_gains<kFours>(task, gpu::block_threads());
  gpu::griddepcontrol_wait();
  auto* sums = gpu::shared_memory<float>();
  for (uint64_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    if (row != gpu::block_index().y) gpu::block_barrier();  // the previous row's sums have been read
    device::normalise_row<kFours>(
        task, row, gpu::block_threads(), sums, gains,
        [&](uint32_t column, const float4& values) { device::round_normalised(task, row, column, values); });
  }
}

/// The sum of one number per lane, added in order of lanes; `of_lanes` has a place for each.
__device__ __forceinline__ double sum_of_lanes(double value, double* of_lanes) {
  of_lanes[gpu::lane_index()] = value;
  gpu::warp_barrier();  // all lanes' numbers are stored
  double sum = 0;
  for (unsigned lane = 0; lane < gpu::kWarpThreads; ++lane)
    sum += of_lanes[lane];
  gpu::warp_barrier();  // all have been read before the next ones are stored
  return sum;
}

__global__ void layer_norm_kernel(LayerNormTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  double* of_lanes = gpu::shared_memory<double>() + gpu::warp_index() * gpu::kWarpThreads;
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint64_t row = gpu::block_index().x * warps + gpu::warp_index(); row < task.rows;
       row += uint64_t{gpu::grid_blocks().x} * warps) {
    const float* x = task.x.data + row * task.x.stride;
    float* y = task.y.data + row * task.y.stride;
    double sum = 0;
    for (uint32_t i = gpu::lane_index(); i < task.cols; i += gpu::kWarpThreads)
      sum += static_cast<double>(x[i]);
    const double mean = sum_of_lanes(sum, of_lanes) / task.cols;
    double squares = 0;
    for (uint32_t i = gpu::lane_index(); i < task.cols; i += gpu::kWarpThreads) {
      const double apart = static_cast<double>(x[i]) - mean;
      squares += apart * apart;
    }
    const double variance = sum_of_lanes(squares, of_lanes) / task.cols;
    const double inverse = 1 / gpu::square_root(variance + static_cast<double>(task.epsilon));
    for (uint32_t i = gpu::lane_index(); i < task.cols; i += gpu::kWarpThreads)
      y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * inverse) * task.gain[i] + task.bias[i];
  }
}

__global__ void silu_multiply_kernel(RowPairTask task, float limit) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  for_each_value(task.rows, task.cols, [&](uint64_t row, uint64_t col) {
    float& to = task.to.data[row * task.to.stride + col];
    to = device::silu_times(to, task.from.data[row * task.from.stride + col], limit);
  });
}

__global__ void add_kernel(RowPairTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  for_each_value(task.rows, task.cols, [&](uint64_t row, uint64_t col) {
    task.to.data[row * task.to.stride + col] += task.from.data[row * task.from.stride + col];
  });
}

__global__ void weighted_sum_kernel(WeightedSumTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  for_each_value(task.rows, task.cols, [&](uint64_t row, uint64_t col) { device::sum_weighted(task, row, col); });
}

__global__ void placed_sum_kernel(WeightedSumTask task, const uint32_t* places) {
  for_each_value(task.rows, task.cols, [&](uint64_t row, uint64_t col) {
    device::sum_weighted(task, row, col, [&](uint64_t part) { return uint64_t{places[part]}; });
  });
}

/// A "column" is a pair of one head.
__global__ void rotate_kernel(RotateTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint64_t first = device::first_position(task);
  for_each_value(task.rows, task.heads * (task.dim / 2),
                 [&](uint64_t row, uint64_t col) { device::rotate_pair(task, first, row, col); });
}

__global__ void store_rows_kernel(StoreRowsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint64_t first = uint64_t{task.first_row} + (task.live == nullptr ? 0 : *task.live);
  for_each_value(task.rows, task.cols, [&](uint64_t row, uint64_t col) { device::store_value(task, first, row, col); });
}

template <class Unit>
__global__ void copy_kernel(CopyTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint64_t units = task.bytes / sizeof(Unit);
  const uint64_t step = uint64_t{gpu::grid_blocks().x} * gpu::block_threads();
  for (uint64_t i = uint64_t{gpu::block_index().x} * gpu::block_threads() + gpu::thread_index(); i < units; i += step)
    static_cast<Unit*>(task.to)[i] = static_cast<const Unit*>(task.from)[i];
}

__global__ void gather_rows_kernel(MoveRowsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  for_each_value(task.rows, task.cols, [&](uint64_t row, uint64_t col) {
    task.to.data[row * task.to.stride + col] = task.from.data[task.index[row] * task.from.stride + col];
  });
}

__global__ void scatter_rows_kernel(MoveRowsTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  for_each_value(task.rows, task.cols, [&](uint64_t row, uint64_t col) {
    task.to.data[task.index[row] * task.to.stride + col] = task.from.data[row * task.from.stride + col];
  });
}

template <class Task>
void launch_rows(gpu::Stream& stream, void (*kernel)(Task), const Task& task) {
  if (task.rows == 0 || task.cols == 0) return;
  gpu::launch_overlapping(stream, choose_rows_launch(task.rows, task.cols), kernel, task);
}

constexpr uint32_t kMaxBlocks = 65'535;  // in y

}  // namespace

gpu::LaunchShape choose_rows_launch(uint32_t rows, uint32_t cols) {
  constexpr unsigned kThreads = 256;
  const auto threads =
      static_cast<unsigned>(std::min<uint64_t>(kThreads, round_up(std::max(cols, 1U), gpu::kWarpThreads)));
  return {.grid_x = static_cast<unsigned>(ceil_div(std::max(cols, 1U), threads)),
          .grid_y = std::min(rows, kMaxBlocks),
          .threads = threads};
}

gpu::LaunchShape choose_norm_launch(uint32_t rows, uint32_t cols) {
  // One thread per four values, or per four in each of as few rounds as possible: one token's norm is bound by latency.
  const uint64_t fours = std::max<uint64_t>(ceil_div(cols, 4), 1);
  const uint64_t rounds = ceil_div(fours, kMaxNormThreads);
  const uint64_t threads = round_up(ceil_div(fours, rounds), gpu::kWarpThreads);
  return {.grid_x = 1,
          .grid_y = std::min(rows, kMaxBlocks),
          .threads = static_cast<unsigned>(threads),
          .shared_bytes = gpu::kWarpThreads * sizeof(float)};
}

bool has_fours(const RmsNormTask& task) {
  const uint64_t strides = task.rows > 1 ? (task.x.stride | task.y.stride) * sizeof(float) : 0;
  const uint64_t places = reinterpret_cast<uintptr_t>(task.x.data) | reinterpret_cast<uintptr_t>(task.y.data) |
                          reinterpret_cast<uintptr_t>(task.gain) | strides;
  return places % sizeof(float4) == 0 && task.cols % 4 == 0;
}

gpu::LaunchShape choose_layer_norm_launch(uint32_t rows) {
  constexpr unsigned kMaxWarps = 4;
  constexpr uint64_t kMaxRowBlocks = 1U << 20;
  const auto warps = std::clamp(rows, 1U, kMaxWarps);
  return {.grid_x = static_cast<unsigned>(std::clamp<uint64_t>(ceil_div(rows, warps), 1, kMaxRowBlocks)),
          .threads = warps * gpu::kWarpThreads,
          .shared_bytes = static_cast<unsigned>(warps * gpu::kWarpThreads * sizeof(double))};
}

gpu::LaunchShape choose_copy_launch(uint64_t units) {
  // Enough bytes in flight to fill a link: 128 KiB in units of 16 bytes.
  constexpr unsigned kThreads = 128;
  constexpr uint64_t kMaxBlocks = 64;
  return {.grid_x = static_cast<unsigned>(std::clamp<uint64_t>(ceil_div(units, kThreads), 1, kMaxBlocks)),
          .threads = kThreads};
}

void run_rms_norm(gpu::Stream& stream, const RmsNormTask& task) {
  if (task.rows == 0 || task.cols == 0) return;
  gpu::launch_overlapping(stream, choose_norm_launch(task.rows, task.cols),
                          has_fours(task) ? rms_norm_kernel<true> : rms_norm_kernel<false>, task);
}

void run_layer_norm(gpu::Stream& stream, const LayerNormTask& task) {
  if (task.rows == 0 || task.cols == 0) return;
  gpu::launch_overlapping(stream, choose_layer_norm_launch(task.rows), layer_norm_kernel, task);
}

void run_silu_multiply(gpu::Stream& stream, const RowPairTask& task, float limit) {
  if (task.rows == 0 || task.cols == 0) return;
  gpu::launch_overlapping(stream, choose_rows_launch(task.rows, task.cols), silu_multiply_kernel, task, limit);
}
bool has_code_for_device() {
  return gpu::has_code(add_kernel);
}
void run_add(gpu::Stream& stream, const RowPairTask& task) {
  launch_rows(stream, add_kernel, task);
}
void run_weighted_sum(gpu::Stream& stream, const WeightedSumTask& task) {
  launch_rows(stream, weighted_sum_kernel, task);
}
void run_placed_sum(gpu::Stream& stream, const WeightedSumTask& task, const uint32_t* places) {
  if (task.rows == 0 || task.cols == 0) return;
  gpu::launch(stream, choose_rows_launch(task.rows, task.cols), placed_sum_kernel, task, places);
}

void run_rotate(gpu::Stream& stream, const RotateTask& task) {
  const uint32_t pairs = task.heads * (task.dim / 2);
  if (task.rows == 0 || pairs == 0) return;
  gpu::launch_overlapping(stream, choose_rows_launch(task.rows, pairs), rotate_kernel, task);
}

void run_store_rows(gpu::Stream& stream, const StoreRowsTask& task) {
  DSPACK_CHECK(task.dtype == Dtype::f32 || task.dtype == Dtype::bf16 || task.dtype == Dtype::f16, "rows of this type");
  launch_rows(stream, store_rows_kernel, task);
}
void run_copy(gpu::Stream& stream, const CopyTask& task) {
  const auto run = [&]<class Unit>(Unit) {
    gpu::launch_overlapping(stream, choose_copy_launch(task.bytes / sizeof(Unit)), copy_kernel<Unit>, task);
  };
  const uint64_t places = reinterpret_cast<uintptr_t>(task.to) | reinterpret_cast<uintptr_t>(task.from) | task.bytes;
  if (places % sizeof(uint4) == 0) return run(uint4());
  places % sizeof(uint32_t) == 0 ? run(uint32_t()) : run(uint8_t());
}
void run_gather_rows(gpu::Stream& stream, const MoveRowsTask& task) {
  launch_rows(stream, gather_rows_kernel, task);
}
void run_scatter_rows(gpu::Stream& stream, const MoveRowsTask& task) {
  launch_rows(stream, scatter_rows_kernel, task);
}

}  // namespace dspack::kernels::cuda
