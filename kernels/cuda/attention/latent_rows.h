// Rounds rows of a latent cache, and of index keys, to FP8 (kernels/latent_rows.h) on CUDA. The stored bits are the
// CPU's.
//
// A warp takes one tile of a row, four values per lane, or the rest after the tiles: the padding of the scales to 16
// bytes, and the rotary key. Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors:
// none; shapes have been checked (kernels/checks.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/latent_rows.h"

namespace dspack::kernels::cuda {

/// The first row goes *live rows after `to`.
struct StoreLatentsTask {
  uint8_t* to = nullptr;  // 16-byte aligned
  LatentShape shape;
  Fp8Row row;          // fp8_row(shape)
  uint32_t tiles = 0;  // latent_tiles(shape.latent_dim)
  RowsAt<const float> from;
  uint32_t rows = 0;
  const uint32_t* live = nullptr;  // null: 0
};
void run_store_latents(gpu::Stream& stream, const StoreLatentsTask& task);

/// Queue::store_fp8_rows: the first row goes *live rows after `codes` and `scales`.
struct StoreFp8RowsTask {
  uint8_t* codes = nullptr;  // [.., cols]
  float* scales = nullptr;
  RowsAt<const float> from;
  uint32_t rows = 0;
  uint32_t cols = 0;
  const uint32_t* live = nullptr;  // null: 0
};
void run_store_fp8_rows(gpu::Stream& stream, const StoreFp8RowsTask& task);

/// Number of tiles in a row.
[[nodiscard]] constexpr uint32_t latent_tiles(uint32_t latent_dim) {
  return (latent_dim + kLatentTile - 1) / kLatentTile;
}
/// One warp per tile and one more. Pure; the kernel loops over rows with stride grid_y.
[[nodiscard]] gpu::LaunchShape choose_store_latents_launch(uint32_t rows, uint32_t latent_dim);
/// One warp per row. Pure; the kernel loops over rows with the stride of the grid's warps.
[[nodiscard]] gpu::LaunchShape choose_store_fp8_rows_launch(uint32_t rows);

}  // namespace dspack::kernels::cuda
