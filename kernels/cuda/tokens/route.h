// Group-limited top-k routing on a GPU (RouterArgs in kernels/ops.h).
// Guarantee: scores are computed in double and rounded to FP32 once. They equal the CPU's, except where the two
// libraries' exp (or, for softmax, the order of the sum in double) differs and the value is within about 1e-15 of a
// rounding boundary; then they differ by one ulp. Given the same scores, ids and weights are the CPU's bit for bit,
// including NaN.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include "kernels/arguments.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

using RouteTask = RouterAt<AddressOf>;
void run_route(gpu::Stream& stream, const RouteTask& task);

/// One block per row. Pure.
[[nodiscard]] gpu::LaunchShape choose_route_launch(const RouteTask& task);

}  // namespace dspack::kernels::cuda
