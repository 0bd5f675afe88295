// The table for AVX2 with FMA and F16C: two registers are one vector of 16 lanes.
#include "kernels/cpu/avx2.inl.h"

#include "kernels/cpu/table.inl.h"

namespace dspack::kernels {

constinit const CpuOps kAvx2Ops = make_table<Vec256x2>("avx2");

}  // namespace dspack::kernels
