// Products in precision int8 with AVX512-VNNI, besides F, BW, VL and DQ.
#include "kernels/cpu/avx512.inl.h"
#include "kernels/cpu/int8.inl.h"

namespace dspack::kernels {

constinit const RoundedOps kAvx512VnniInt8 = kInt8Products<Vec512>;

}  // namespace dspack::kernels
