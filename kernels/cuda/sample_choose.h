// The last launch of run_sample (sample.h), a file of its own. Contract as there.
#pragma once

#include "kernels/cuda/sample.h"

namespace dspack::kernels::cuda {

/// Draws from the weights that the launches before have left.
void launch_choice(gpu::Stream& stream, const SampleTask& task);

}  // namespace dspack::kernels::cuda
