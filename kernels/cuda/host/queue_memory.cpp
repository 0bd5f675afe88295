#include "kernels/cuda/host/queue_memory.h"

#include <algorithm>

#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/attention/attend_expanded.h"
#include "kernels/cuda/attention/window_attend.h"

namespace dspack::kernels::cuda {
namespace {

/// Partial results of attention.
uint64_t attention_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.heads == 0) return 0;
  if (largest.window_dim > 0)
    return window_scratch_bytes(std::min(largest.rows, kMaxSplitRows), largest.heads, largest.window_dim);
  return attend_scratch_bytes({.rows = largest.rows,
                               .heads = largest.heads,
                               .latent_dim = largest.latent_dim,
                               .rope_dim = largest.rope_dim,
                               .position_limit = std::max(largest.positions, 1U)});
}

/// Expanded keys and values of a prompt's heads.
uint64_t expanded_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  if (precision == Precision::exact || largest.value_dim == 0 || largest.rows == 0) return 0;
  return expanded_scratch_bytes({.rows = largest.rows,
                                 .heads = largest.heads,
                                 .latent_dim = largest.latent_dim,
                                 .rope_dim = largest.rope_dim,
                                 .nope_dim = largest.nope_dim,
                                 .value_dim = largest.value_dim,
                                 .positions = largest.positions});
}

}  // namespace

uint64_t choice_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.index_heads == 0) return 0;
  return choose_scratch_bytes(largest.rows, largest.positions);
}

uint64_t shared_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  const uint64_t rounded = precision == Precision::exact ? 0 : kMaxRoundedBytes;
  return std::max({attention_workspace_bytes(largest), choice_workspace_bytes(largest),
                   expanded_workspace_bytes(largest, precision), rounded});
}

uint64_t queue_workspace_bytes(const WorkspaceShape& largest, Precision precision) {
  const uint64_t of_choices = choice_workspace_bytes(largest) > 0 ? kChooseCounterBytes : 0;
  return shared_workspace_bytes(largest, precision) + of_choices + kIndexSpaceBytes + kExpertCounterBytes;
}

uint64_t device_workspace_bytes(const WorkspaceShape& largest, Precision precision, bool has_cublaslt) {
  const Precision of_others = besides_attention(precision);
  return queue_workspace_bytes(largest, of_others) + linear_blas_workspace_bytes(of_others, has_cublaslt);
}

uint32_t device_max_window_dim() {
  return kMaxWindowDim;
}

uint64_t device_experts_bytes(const ExpertsShape& shape, Precision precision) {
  return experts_scratch_bytes(shape, besides_attention(precision));
}

}  // namespace dspack::kernels::cuda
