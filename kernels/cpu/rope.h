// Rotary embedding on host memory.
// Threads: pure but for `data`. Lifetime: pointers are borrowed for the call. Errors: none; shapes have been checked.
#pragma once

#include "kernels/ops.h"

namespace dspack::kernels {

/// Rotates args.rows x args.heads vectors. `data` and `cos_sin` are where the slices of `args` point.
void rotate(const RopeArgs& args, float* data, const float* cos_sin);

}  // namespace dspack::kernels
