#include "kernels/cpu/rope.h"

namespace dspack::kernels {
namespace {

/// (x[2k] + i x[2k+1]) * (cos + i sin), rounded after each operation.
void rotate_vector(float* x, const float* cos_sin, uint32_t dim) {
  for (uint32_t k = 0; k < dim; k += 2) {
    const float real = x[k];
    const float imaginary = x[k + 1];
    x[k] = real * cos_sin[k] - imaginary * cos_sin[k + 1];
    x[k + 1] = real * cos_sin[k + 1] + imaginary * cos_sin[k];
  }
}

}  // namespace

void rotate(const RopeArgs& args, float* data, const float* cos_sin) {
  for (uint64_t row = 0; row < args.rows; ++row) {
    const float* at_position = cos_sin + (args.first_position + row) * args.dim;
    for (uint64_t head = 0; head < args.heads; ++head) {
      rotate_vector(data + row * args.row_stride + head * args.head_stride, at_position, args.dim);
    }
  }
}

}  // namespace dspack::kernels
