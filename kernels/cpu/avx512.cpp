// The table for AVX-512 (F, BW, VL, DQ): one register is one vector of 16 lanes.
#include "kernels/cpu/avx512.inl.h"
#include "kernels/cpu/table.inl.h"

namespace dspack::kernels {

constinit const CpuOps kAvx512Ops = make_table<Vec512>("avx512");

}  // namespace dspack::kernels
