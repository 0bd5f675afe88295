// Rows of FP32 latents and rotary keys to and from FP8 (kernels/latent_rows.h).
// Threads: pure but for the output. Lifetime: pointers are borrowed for the call. Errors: none; shapes have been
// checked.
#pragma once

#include <cstddef>

#include "kernels/cpu/ops_table.h"
#include "kernels/latent_rows.h"

namespace dspack::kernels {

/// `stride`: values from one FP32 row to the next. Stored rows are dense, and written with all of their padding.
void store_latent_rows(std::byte* to, LatentShape shape, const float* from, uint64_t stride, RowRange rows);
void load_latent_rows(float* to, uint64_t stride, const std::byte* from, LatentShape shape, RowRange rows);

}  // namespace dspack::kernels
