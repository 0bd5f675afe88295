// Finishes the projected latents of some positions in one launch: norms of the cache's row and of the queries' latent,
// rotation of the key, and the store to the cache (LatentsArgs of kernels/ops.h). Values have the bits of separate
// launches. Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have
// been checked.
#pragma once

#include "kernels/cuda/attention/latent_rows.h"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels::cuda {

struct LatentsTask {
  RmsNormTask latent;       // in place
  RotateTask rope;          // the same number of rows
  RmsNormTask query;        // in place, the same number of rows; cols = 0: none
  StoreRowsTask stored;     // store of the finished rows; to = null: none
  StoreLatentsTask in_fp8;  // as `stored`, in FP8
};
void run_latents(gpu::Stream& stream, const LatentsTask& task);

/// Pure. x: rows of the cache, and of the queries' latents if there are any; y: rows. Every block has the threads of
/// the wider norm.
[[nodiscard]] gpu::LaunchShape choose_latents_launch(uint32_t rows, uint32_t latent_dim, uint32_t query_cols);

}  // namespace dspack::kernels::cuda
