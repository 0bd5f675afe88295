// Residual streams of hyper-connections (kernels::ReadStreamsArgs, JoinStreamsArgs), a row at a time.
// Threads: pure but for their outputs. Errors: none; shapes have been checked.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace dspack::kernels {

void read_streams_row(const ReadStreamsArgs& args, uint32_t row);
void join_streams_row(const JoinStreamsArgs& args, uint32_t row);

}  // namespace dspack::kernels
