// The queue of the CUDA device: checks an operation, turns its slices into addresses, launches its kernels on a stream;
// and what it takes of the GPU's memory for itself, as plans count it.
// Threads: one thread at a time. Lifetime: owns its stream; borrows nothing but the buffers of what was enqueued.
// Errors: shapes that do not fit, and buffers of another device, are programming errors; a GPU without memory for the
// queue's own workspace has failed (Queue::failure), and nothing that is launched from then on uses the address.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/attend_expanded.h"
#include "kernels/cuda/choose.h"
#include "kernels/cuda/expert_tiles.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/index_space.h"
#include "kernels/cuda/linear_blas.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Counters of experts in one launch, followed by that of a router in one, that of a choice of tokens, and the tiles of
/// held experts.
inline constexpr uint32_t kRouteCounter = kFusedCounters;
inline constexpr uint32_t kTokenCounter = kRouteCounter + 1;
inline constexpr uint32_t kHeldTiles = kTokenCounter + 1;
inline constexpr uint64_t kExpertCounterBytes = (uint64_t{kHeldTiles} + kHeldTilesWords) * sizeof(uint32_t);

/// Counters of a choice of positions.
inline constexpr uint64_t kChooseCounterBytes = kMostChooseRows * sizeof(ChooseCounters);

/// Partial results of attention.
[[nodiscard]] inline uint64_t attention_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.heads == 0) return 0;
  return attend_scratch_bytes({.rows = largest.rows,
                               .heads = largest.heads,
                               .latent_dim = largest.latent_dim,
                               .rope_dim = largest.rope_dim,
                               .position_limit = std::max(largest.positions, 1U)});
}

/// Keys and values of a prompt's heads.
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

/// Scores of the indexer's choice.
[[nodiscard]] inline uint64_t choice_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.index_heads == 0) return 0;
  return choose_scratch_bytes(largest.rows, largest.positions);
}

/// Rounded inputs of products on tensor cores; more rows run in parts. 192 rows of V3's widest (18,432 values), whose
/// weights 64 rows read anew anyway.
inline constexpr uint64_t kMostRoundedBytes = 8 << 20;

/// What operations share, one after the other.
[[nodiscard]] inline uint64_t shared_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  const uint64_t rounded = precision == Precision::exact ? 0 : kMostRoundedBytes;
  return std::max({attention_workspace_bytes(largest), choice_workspace_bytes(largest),
                   expanded_workspace_bytes(largest, precision), rounded});
}

[[nodiscard]] inline uint64_t queue_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  const uint64_t of_choices = choice_workspace_bytes(largest) > 0 ? kChooseCounterBytes : 0;
  return shared_workspace_bytes(largest, precision) + of_choices + kIndexSpaceBytes + kExpertCounterBytes;
}

/// `blas`: null where there is no cuBLASLt.
[[nodiscard]] std::unique_ptr<Queue> make_cuda_queue(const gpu::Properties& properties, Precision precision,
                                                     std::shared_ptr<BlasUse> blas);

}  // namespace dspack::kernels::cuda
