// The table for AArch64, which always has NEON: four registers are one vector of 16 lanes.
#include "kernels/cpu/neon.inl.h"

#include "kernels/cpu/table.inl.h"

namespace dspack::kernels {

constinit const CpuOps kNeonOps = make_table<Vec128x4>("neon");

}  // namespace dspack::kernels
