// The choice of the lightning indexer (kernels::ChooseArgs). Scores are computed a block of positions at a time, for
// which the queries' heads share the keys, and each block leaves only what may still be among the best: memory grows
// with neither context nor rows (most_choose_bytes in cpu_device.h). A score depends on its row and position alone,
// and the best are ordered strictly, so that neither threads nor the other rows of a call change a choice.
// Threads: runs on `workers`. Lifetime: borrows its arguments for the call. Errors: none; shapes have been checked.
#pragma once

#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/workers.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// `position`: of the first row, what is live included.
void choose_positions(const CpuOps& ops, Workers& workers, const ChooseArgs& args, uint32_t position);

}  // namespace dspack::kernels
