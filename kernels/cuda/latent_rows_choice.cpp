#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/latent_rows.h"

namespace dspack::kernels::cuda {

gpu::LaunchShape choose_store_latents_launch(uint32_t rows, uint32_t latent_dim) {
  constexpr uint32_t kWarp = 32;
  constexpr uint32_t kMostWarps = 8;        // of a block
  constexpr uint32_t kMostBlocks = 65'535;  // in y
  const uint32_t parts = latent_tiles(latent_dim) + 1;
  const uint32_t warps = std::min(parts, kMostWarps);
  return {.grid_x = static_cast<unsigned>(ceil_div(parts, warps)),
          .grid_y = std::clamp(rows, 1U, kMostBlocks),
          .threads = warps * kWarp};
}

}  // namespace dspack::kernels::cuda
