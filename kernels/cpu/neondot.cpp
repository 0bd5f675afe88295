// Products in precision int8 with the dot products that AArch64 has from version 8.2 on.
#include "kernels/cpu/int8.inl.h"
#include "kernels/cpu/neon.inl.h"

namespace dspack::kernels {

constinit const RoundedOps kNeonDotInt8 = kInt8Products<Vec128x4>;

}  // namespace dspack::kernels
