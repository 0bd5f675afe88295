// Routing of one token: scores, groups, the best experts, their weights. The same code for every instruction set.
// Threads: pure except for its outputs. Lifetime: spans are borrowed for the call. Errors: none; shapes have been
// checked.
#pragma once

#include <span>

#include "kernels/ops.h"

namespace dspack::kernels {

/// `scores`: in, the logits of one row; out, its scores. `bias` is empty or one value per expert.
void route_row(const RouterArgs& args, std::span<float> scores, std::span<const float> bias, std::span<uint32_t> ids,
               std::span<float> weights);

}  // namespace dspack::kernels
