// What is left to do with the latents of some positions once they have been projected, in one launch: norms of the
// cache's row and of the queries' latent, rotation of the key, and the row's place in the cache (LatentsArgs of
// kernels/ops.h). Values have the bits of separate launches. Threads: enqueues. Lifetime: the addresses are borrowed
// until the stream has run. Errors: none; shapes have been checked.
#pragma once

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/latent_rows.h"

namespace dspack::kernels::cuda {

struct LatentsTask {
  RmsNormTask latent;       // in place
  RotateTask rope;          // of as many rows
  RmsNormTask query;        // in place, of as many rows; no columns: there are none
  StoreRowsTask stored;     // the rows as they are then; to nowhere: not so
  StoreLatentsTask in_fp8;  // likewise
};
void run_latents(gpu::Stream& stream, const LatentsTask& task);

/// Pure. x: the cache's rows, and the queries' latents if there are any; y: rows. Every block has the threads of the
/// wider norm.
[[nodiscard]] gpu::LaunchShape choose_latents_launch(uint32_t rows, uint32_t latent_dim, uint32_t query_cols);

}  // namespace dspack::kernels::cuda
