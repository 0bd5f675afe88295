// HeadLinearArgs of kernels/ops.h on CUDA, in FP32 with exactly decoded weights: absorbed MLA's products with parts of
// kv_b_proj. A weight is read once for up to eight tokens; a value depends only on its token and the weight.
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked (kernels/checks.h).
#pragma once

#include "kernels/attention_arguments.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels::cuda {

using HeadLinearTask = HeadLinearAt<AddressOf>;

/// How a product is spread over a GPU. Pure.
struct HeadLinearChoice {
  unsigned tokens = 1;         // tokens per block: 1, 2, 4 or 8
  uint32_t blocks_a_head = 1;  // each for some rows, or columns (transposed)
  uint32_t tile_groups = 1;    // plain: groups of 32 chunks of an input row in shared memory at once
  uint32_t lanes = 32;         // transposed: groups of four columns per block: 16 or 32
  gpu::LaunchShape shape;
};
[[nodiscard]] HeadLinearChoice choose_head_linear(const HeadLinearTask& task);
[[nodiscard]] HeadLinearChoice choose_head_linear_transposed(const HeadLinearTask& task);

/// y[r, h, d] = sum over j < in of x[r, h, j] * weight[row(h, d), j], d < rows_used.
void head_linear_exact(gpu::Stream& stream, const HeadLinearTask& task);
/// y[r, h, j] = sum over d < rows_used of x[r, h, d] * weight[row(h, d), j], j < in.
void head_linear_transposed_exact(gpu::Stream& stream, const HeadLinearTask& task);
/// Whether absorb_exact takes it: a common coding (matrix.h), in rows that allow 16-byte reads, and no more tokens than
/// one block takes.
[[nodiscard]] bool takes_rotation(const HeadLinearTask& absorbed);
/// Same, plus a rotation of other values by additional blocks. Precondition: takes_rotation, and neither part is empty.
void absorb_exact(gpu::Stream& stream, const RotateTask& rotated, const HeadLinearTask& absorbed);

}  // namespace dspack::kernels::cuda
