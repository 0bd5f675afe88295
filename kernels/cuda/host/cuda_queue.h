// The queue of the CUDA device: checks an operation, turns its slices into addresses, and launches its kernels on a
// stream. Also the GPU memory that it takes for itself, for plans.
// Threads: one thread at a time. Lifetime: owns its stream; borrows only the buffers of enqueued operations. Errors:
// shapes that do not fit, and buffers of another device, are programming errors; if there is no memory for the queue's
// own workspace, the GPU counts as failed (Queue::failure), and no later launch uses the address.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/attention/attend_expanded.h"
#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/cuda/host/index_space.h"
#include "kernels/cuda/host/workspace.h"
#include "kernels/cuda/linear/linear_blas.h"
#include "kernels/cuda/sparse/choose.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Layout of the counters: those of experts in one launch, of a router in one launch, of the choice of tokens, then the
/// tiles of held experts.
inline constexpr uint32_t kRouteCounter = kFusedCounters;
inline constexpr uint32_t kTokenCounter = kRouteCounter + 1;
inline constexpr uint32_t kHeldTiles = kTokenCounter + 1;
inline constexpr uint64_t kExpertCounterBytes = (uint64_t{kHeldTiles} + kHeldTilesWords) * sizeof(uint32_t);

/// Counters for the choice of positions.
inline constexpr uint64_t kChooseCounterBytes = kMaxChooseRows * sizeof(ChooseCounters);

/// Partial results of attention.
[[nodiscard]] inline uint64_t attention_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.heads == 0) return 0;
  return attend_scratch_bytes({.rows = largest.rows,
                               .heads = largest.heads,
                               .latent_dim = largest.latent_dim,
                               .rope_dim = largest.rope_dim,
                               .position_limit = std::max(largest.positions, 1U)});
}

/// Expanded keys and values of a prompt's heads.
[[nodiscard]] inline uint64_t expanded_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  if (precision == Precision::exact || largest.value_dim == 0 || largest.rows == 0) return 0;
  return expanded_scratch_bytes({.rows = largest.rows,
                                 .heads = largest.heads,
                                 .latent_dim = largest.latent_dim,
                                 .rope_dim = largest.rope_dim,
                                 .nope_dim = largest.nope_dim,
                                 .value_dim = largest.value_dim,
                                 .positions = largest.positions});
}

/// Scores of the indexer.
[[nodiscard]] inline uint64_t choice_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.index_heads == 0) return 0;
  return choose_scratch_bytes(largest.rows, largest.positions);
}

/// Rounded inputs of products on tensor cores; more rows run in parts. Holds 192 rows of V3's widest input (18,432
/// values), while every 64 rows read the weights again anyway.
inline constexpr uint64_t kMaxRoundedBytes = 8 << 20;

/// Memory that operations share, one after the other.
[[nodiscard]] inline uint64_t shared_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  const uint64_t rounded = precision == Precision::exact ? 0 : kMaxRoundedBytes;
  return std::max({attention_workspace_bytes(largest), choice_workspace_bytes(largest),
                   expanded_workspace_bytes(largest, precision), rounded});
}

[[nodiscard]] inline uint64_t queue_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  const uint64_t of_choices = choice_workspace_bytes(largest) > 0 ? kChooseCounterBytes : 0;
  return shared_workspace_bytes(largest, precision) + of_choices + kIndexSpaceBytes + kExpertCounterBytes;
}

/// `blas`: null if there is no cuBLASLt.
[[nodiscard]] std::unique_ptr<Queue> make_cuda_queue(const gpu::Properties& properties, Precision precision,
                                                     std::shared_ptr<BlasUse> blas);

}  // namespace dspack::kernels::cuda
