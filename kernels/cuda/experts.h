// The routed experts of a layer on a GPU: all of them in one launch per step, found through a table on the device, so
// that what is launched depends on shapes alone and one recorded graph serves every routing.
//
// Few tokens take one launch (experts_fused.h), more of them one a step.
//
// Steps: assignments (token * top_k + slot) are sorted by expert and cut into tiles of one expert (one token needs no
// sorting); gate, up and SiLU; down; the sum over slots in the router's order, by fma. Weights are read once a tile.
// Threads: as the stream. Lifetime: device memory is borrowed until the stream has run. Errors: shapes that do not fit
// are DSPACK_CHECKs; expert numbers lie on the device and are not checked: one that is not below `experts` reads beyond
// the table (one token) or leaves its part, or its token's row, unwritten.
#pragma once

#include <cstdint>

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

/// Where one expert's planes lie, on the device; null where the form has none.
struct ExpertEntry {
  const void* gate[kPlanes] = {};
  const void* up[kPlanes] = {};
  const void* down[kPlanes] = {};
};

/// Gate and up [inner, hidden] are stored alike; down [hidden, inner].
struct ExpertForm {
  MatrixForm gate_up;
  MatrixForm down;
};

/// Assignments of some experts, cut into tiles by the host (expert_groups.h), instead of all by ids.
struct CutTiles {
  const uint32_t* words = nullptr;  // on the device
  uint32_t tiles = 0;               // 0: nothing was cut
  uint32_t order_at = 0;            // words before the order of assignments
  uint32_t most = 0;                // assignments of one expert
};

struct ExpertsTask {
  const ExpertEntry* table = nullptr;
  ExpertForm form;
  uint32_t experts = 0;            // in the table
  RowsAt<const float> x;           // [tokens, hidden]
  const uint32_t* ids = nullptr;   // [tokens, top_k], each below `experts`
  const float* weights = nullptr;  // [tokens, top_k]
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  void* scratch = nullptr;  // of experts_scratch_bytes for at least so many tokens, 256-byte aligned
  RowsAt<float> y = {};     // [tokens, hidden]; not x
  /// Where they are, what an expert gives goes to `parts`, by assignment, and nothing is added up: ids, weights and y
  /// are not looked at.
  CutTiles cut = {};
  RowsAt<float> parts = {};  // [tokens * top_k, hidden]
  /// kFusedCounters words (experts_fused.h), zero, that no other stream uses; they are zero again when the stream has
  /// run. Null: one launch a step, with the same bits.
  uint32_t* counters = nullptr;
};

/// Tokens that an expert gets at most.
[[nodiscard]] inline uint32_t most_tokens(const ExpertsTask& task) {
  return task.cut.tiles > 0 ? task.cut.most : task.tokens;
}

/// Grows with every number of the shape. Serves run_experts and run_experts_tensor.
[[nodiscard]] uint64_t experts_scratch_bytes(const ExpertsShape& shape);

/// Precision mode `exact` (kernels/ops.h): FP32 activations and accumulation; the value of an output depends on its
/// input row and its slots alone.
void run_experts(gpu::Stream& stream, const ExpertsTask& task);

}  // namespace dspack::kernels::cuda
