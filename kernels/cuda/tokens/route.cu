#include "kernels/cuda/tokens/route.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "kernels/cuda/tokens/route.cuh"

namespace dspack::kernels::cuda {
namespace {

__global__ void __launch_bounds__(device::kRouteWarps* gpu::kWarpThreads) route_kernel(RouteTask task) {
  gpu::launch_dependents();
  device::prefetch_bias(task);
  const device::RoutePlan plan = device::plan_route(task);
  gpu::griddepcontrol_wait();
  device::route_row(task, plan, gpu::block_index().x);
}

}  // namespace

gpu::LaunchShape choose_route_launch(const RouteTask& task) {
  const device::RoutePlan plan = device::plan_route(task);
  return {.grid_x = task.rows,
          .threads = std::min(plan.chunks, device::kRouteWarps) * gpu::kWarpThreads,
          .shared_bytes = device::route_shared_bytes(task, plan)};
}

void run_route(gpu::Stream& stream, const RouteTask& task) {
  if (task.rows == 0) return;
  gpu::launch_overlapping(stream, choose_route_launch(task), route_kernel, task);
}

}  // namespace dspack::kernels::cuda
