// Routing of one token: scores, groups, the best experts, their weights. The same code for every instruction set.
// Threads: changes its row alone. Errors: none; shapes have been checked.
#pragma once

#include "kernels/arguments.h"

namespace dspack::kernels {

using RouteTask = RouterAt<AddressOf>;
void route_row(const RouteTask& task, uint32_t row);

}  // namespace dspack::kernels
