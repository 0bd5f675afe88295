// Products in precision int8 with AVX-VNNI, the sums of four byte products of processors without AVX-512.
#include "kernels/cpu/avx2.inl.h"
#include "kernels/cpu/int8.inl.h"

namespace dspack::kernels {

constinit const RoundedOps kAvxVnniInt8 = kInt8Products<Vec256x2>;

}  // namespace dspack::kernels
