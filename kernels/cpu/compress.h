// Compresses a sequence's positions to entries (kernels::CompressArgs).
// Threads: an operation runs on all workers. Errors: none; shapes have been checked.
#pragma once

#include "kernels/cpu/workers.h"
#include "kernels/ops.h"

namespace dspack::kernels {

/// Precondition: args.live has been added.
void compress_positions(Workers& workers, const CompressArgs& args);

}  // namespace dspack::kernels
