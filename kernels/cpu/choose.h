// Position selection by the lightning indexer (kernels::ChooseArgs). Scores are computed for a block of positions at a
// time, whose keys all heads of the queries share, and each block leaves only candidates for the best: memory grows
// with neither context nor rows (most_choose_bytes in cpu_device.h). A score depends only on its row and position, and
// the order of scores is strict, so neither threads nor the other rows of a call change a choice.
// Threads: runs on `workers`. Lifetime: borrows its arguments for the call. Errors: none; shapes have been checked.
#pragma once

#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/workers.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// `position`: absolute position of the first row, including args.live.
void choose_positions(const CpuOps& ops, Workers& workers, const ChooseArgs& args, uint32_t position);

}  // namespace dspack::kernels
