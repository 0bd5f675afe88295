// The routed experts of a layer on the tensor cores, for precision modes bf16 and fp8: weights decoded exactly to BF16,
// inputs rounded to it (device/rounding.cuh), FP32 accumulation, scales applied to the FP32 sums of a chunk of columns.
// Otherwise as experts.h. For few tokens (a tile of 8 assignments) and for many (64).
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: as experts.h.
#pragma once

#include "kernels/cuda/expert_tiles.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Whether the tensor cores can multiply these weights without rounding them (fits_tensor_cores). Others take
/// run_experts.
[[nodiscard]] bool experts_fit_tensor_cores(const ExpertForm& form);

/// Precondition: experts_fit_tensor_cores. `precision`: bf16 or fp8 (linear_tensor.h). The value of an output depends
/// on its input row and its slots alone.
void run_experts_tensor(gpu::Stream& stream, const ExpertsTask& task, Precision precision);

/// How a product runs. Pure.
struct ExpertsTensorChoice {
  unsigned token_tiles = 1;     // of 8 assignments that a tile may hold: 1 or 8
  uint32_t staged_columns = 0;  // of the inputs, in shared memory at once, for a full tile
  gpu::LaunchShape shape;       // x: tiles, y: groups of matrix rows
};
/// tokens, tiles: as choose_experts. outputs_of_warp: 16 for gate and up, 32 for down.
[[nodiscard]] ExpertsTensorChoice choose_experts_tensor(const MatrixForm& form, uint32_t outputs_of_warp,
                                                        uint32_t tokens, uint64_t tiles);
/// Warps of a block. Few tokens: small blocks, that all multiprocessors get some. Many: large ones, since each rounds
/// its inputs anew; six warps: of two blocks three to a scheduler, 168 registers each.
[[nodiscard]] constexpr unsigned expert_tensor_warps(unsigned token_tiles) {
  constexpr unsigned kFew = 4;
  constexpr unsigned kMany = 6;
  return token_tiles == 1 ? kFew : kMany;
}
/// Assignments of a tile.
[[nodiscard]] constexpr uint32_t tensor_tile(uint32_t tokens) {
  constexpr uint32_t kFew = 8;
  constexpr uint32_t kMany = 64;
  return tokens <= kFew ? kFew : kMany;
}

}  // namespace dspack::kernels::cuda
