// Group-limited top-k routing on a GPU (RouterArgs in kernels/ops.h).
// Guarantee: scores are computed in double and rounded to FP32 once. They equal the CPU's, except where the two
// libraries' exp (or, for softmax, the order of the sum in double) differs and the value is within about 1e-15 of a
// rounding boundary; then they differ by one ulp. Given the same scores, ids and weights are the CPU's bit for bit,
// including NaN.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "kernels/cuda/hardware/runtime.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

/// RouterArgs with addresses.
struct RouteTask {
  float* logits = nullptr;      // [rows, experts], overwritten with the scores
  const float* bias = nullptr;  // [experts]; null: none
  uint32_t* ids = nullptr;      // [rows, top_k]
  float* weights = nullptr;     // [rows, top_k]
  uint32_t rows = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  uint32_t groups = 1;
  uint32_t groups_kept = 1;
  ScoreFunction score = ScoreFunction::sigmoid;
  GroupScore group_score = GroupScore::top2_sum;
  bool normalise = true;
  float scale = 1;
};
void run_route(gpu::Stream& stream, const RouteTask& task);

/// One block per row. Pure.
[[nodiscard]] gpu::LaunchShape choose_route_launch(const RouteTask& task);

}  // namespace dspack::kernels::cuda
