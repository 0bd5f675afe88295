// Combines all steps of routed experts, and of a shared one, into one launch. The exact kernels and those of tensor
// cores provide the choices of the separate steps.
// Threads: pure functions. Lifetime: as ExpertsTask. Errors: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.cuh"

namespace dspack::kernels::cuda::device {

/// A product with a shared expert's matrices, as in a separate launch.
struct SharedChoice {
  uint32_t warps_a_row = 0;  // as in SharedProduct
  uint32_t staged = 0;
  uint64_t shared_bytes = 0;  // per block
};

/// Gate and up, or down.
struct FusedStep {
  gpu::LaunchShape shape;    // as in the routed experts' separate launch
  uint32_t staged = 0;       // staged inputs of that launch
  SharedChoice shared = {};  // if there is a shared expert
};

struct FusedSteps {
  FusedStep gate_up;
  FusedStep down;
  uint32_t tile = 0;          // most assignments of a tile
  uint32_t inner_blocks = 0;  // FusedShape
  FusedSharedShape shared = {};
};

/// One launch of a task, still without its steps (begin_steps). Nullopt: they must be launched separately.
[[nodiscard]] inline std::optional<FusedTask> plan_fused(const ExpertsTask& task, const FusedSteps& steps) {
  if (task.counters == nullptr) return std::nullopt;
  const uint32_t most = most_tokens(task);
  const auto shape =
      choose_fused_experts(steps.gate_up.shape, steps.down.shape, most, steps.tile, steps.inner_blocks, steps.shared);
  if (!shape.has_value()) return std::nullopt;
  FusedTask fused{.steps = {},
                  .gate_up_staged = steps.gate_up.staged,
                  .down_staged = steps.down.staged,
                  .assignments = task.tokens * task.top_k,
                  .gives_parts = task.cut.tiles > 0,
                  .overlaps = task.cut.tiles == 0 || !task.cut.awaits_copies,
                  .shape = *shape,
                  .counters = lay_out_fused_counters(task.counters, *shape, most)};
  if (task.shared == nullptr) return fused;
  const SharedExpert& shared = *task.shared;
  const auto product = [&](const SharedChoice& choice) {
    SharedProduct of = {};
    of.tokens = task.tokens;
    of.warps_a_row = choice.warps_a_row;
    of.staged = choice.staged;
    return of;
  };
  fused.shared_gate_up = product(steps.gate_up.shared);
  fused.shared_gate_up.matrices[0] = shared.gate;
  fused.shared_gate_up.matrices[1] = shared.up;
  fused.shared_gate_up.x = task.x;
  fused.shared_gate_up.y = shared.inner;
  fused.shared_gate_up.limit = shared.limit;
  fused.shared_down = product(steps.down.shared);
  fused.shared_down.matrices[0] = shared.down;
  fused.shared_down.x = {.data = shared.inner.data, .stride = shared.inner.stride};
  fused.shared_down.y = shared.y;
  fused.shared_down.rounded = shared.rounded_inner;
  fused.shape.launch.shared_bytes = launch_count(std::max(
      {uint64_t{shape->launch.shared_bytes}, steps.gate_up.shared.shared_bytes, steps.down.shared.shared_bytes}));
  return fused;
}

/// Sets the task's steps in a planned launch.
inline void begin_steps(FusedTask& fused, const ExpertsTask& task, const ExpertSteps& steps) {
  fused.steps = steps;
  fused.shared_gate_up.rounded = steps.gate_up.rounded;
  if (task.shared != nullptr) fused.steps.sum.more = {.data = task.shared->y.data, .stride = task.shared->y.stride};
}

}  // namespace dspack::kernels::cuda::device
