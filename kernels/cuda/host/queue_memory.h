// GPU memory that the CUDA device takes for its operations, beside the caller's buffers, and limits of these. Pure:
// programs use it without CUDA, to plan for a GPU that is not there.
// Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/host/index_space.h"
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

/// Rounded inputs of products on tensor cores; more rows run in parts. Holds 192 rows of V3's widest input (18,432
/// values), while every 64 rows read the weights again anyway.
inline constexpr uint64_t kMaxRoundedBytes = 8 << 20;

/// Scores of the indexer.
[[nodiscard]] uint64_t choice_workspace_bytes(const WorkspaceShape& largest);

/// Memory that operations share, one after the other. `precision`: of everything but attention (besides_attention).
[[nodiscard]] uint64_t shared_workspace_bytes(const WorkspaceShape& largest, Precision precision);

/// All that a queue takes, except for products by cuBLASLt (linear_blas_workspace_bytes).
[[nodiscard]] uint64_t queue_workspace_bytes(const WorkspaceShape& largest, Precision precision);

/// Device::workspace_bytes of a CUDA device. `precision`: as CudaOptions has it.
[[nodiscard]] uint64_t device_workspace_bytes(const WorkspaceShape& largest, Precision precision, bool has_cublaslt);
/// Device::max_window_dim of a CUDA device.
[[nodiscard]] uint32_t device_max_window_dim();
/// Device::experts_scratch_bytes of a CUDA device.
[[nodiscard]] uint64_t device_experts_bytes(const ExpertsShape& shape, Precision precision);

}  // namespace dspack::kernels::cuda
