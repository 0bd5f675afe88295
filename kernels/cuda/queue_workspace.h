// What a queue takes of the GPU's memory for itself, as plans count it and as the queue takes it.
// Threads: pure functions. Errors: none.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/experts_fused.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

/// Row numbers of gather_rows and scatter_rows on their way, until the next synchronize.
inline constexpr uint64_t kIndexSpaceBytes = 1 << 20;
/// Counters of experts in one launch.
inline constexpr uint64_t kExpertCounterBytes = kFusedCounters * sizeof(uint32_t);

/// Partial results of attention.
[[nodiscard]] inline uint64_t attention_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.heads == 0) return 0;
  return attend_scratch_bytes({.rows = largest.rows,
                               .heads = largest.heads,
                               .latent_dim = largest.latent_dim,
                               .rope_dim = largest.rope_dim,
                               .position_limit = std::max(largest.positions, 1U)});
}

[[nodiscard]] inline uint64_t queue_workspace_bytes(const WorkspaceShape& largest) {
  return attention_workspace_bytes(largest) + kIndexSpaceBytes + kExpertCounterBytes;
}

}  // namespace dspack::kernels::cuda
