#include "kernels/cuda/route.h"

#include <dspack_gpu.h>

#include "kernels/cuda/device/route.cuh"

namespace dspack::kernels::cuda {
namespace {

__global__ void __launch_bounds__(device::kRouteWarps* gpu::kWarpThreads) route_kernel(RouteTask task) {
  device::route_row(task, gpu::block_index().x);
}

}  // namespace

gpu::LaunchShape choose_route_launch(const RouteTask& task) {
  const unsigned warps = (task.experts + gpu::kWarpThreads - 1) / gpu::kWarpThreads;
  return {.grid_x = task.rows,
          .threads = (warps < device::kRouteWarps ? warps : device::kRouteWarps) * gpu::kWarpThreads,
          .shared_bytes = static_cast<unsigned>(device::kRouteWarps * sizeof(double) +
                                                2 * sizeof(float) * (task.experts + task.groups))};
}

void run_route(gpu::Stream& stream, const RouteTask& task) {
  if (task.rows == 0) return;
  gpu::launch(stream, choose_route_launch(task), route_kernel, task);
}

}  // namespace dspack::kernels::cuda
