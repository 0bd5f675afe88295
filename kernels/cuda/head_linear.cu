// provisional: one thread an output
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/head_linear.h"
namespace dspack::kernels::cuda {
namespace {
template <class S, bool kT>
__global__ void naive(HeadLinearTask t) {
  const uint64_t i = uint64_t{gpu::block_index().x} * gpu::block_threads() + gpu::thread_index();
  const uint32_t width = kT ? t.weight.in : t.rows_used;
  if (i >= uint64_t{t.rows} * t.heads * width) return;
  const auto o = uint32_t(i % width), h = uint32_t(i / width % t.heads), r = uint32_t(i / width / t.heads);
  float sum = 0;
  const float* x = t.x + uint64_t{r} * t.x_row_stride + uint64_t{h} * t.x_head_stride;
  const uint32_t n = kT ? t.rows_used : t.weight.in;
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t row = h * t.head_rows + t.first_row + (kT ? k : o);
    const uint32_t col = kT ? o : k;
    const float* s = device::scales_of(t.weight, row);
    sum = gpu::fused_multiply_add(
        S::decode_one(t.weight.data, uint64_t{row} * t.weight.in + col) * (s ? s[col / t.weight.block_in] : 1.0F), x[k],
        sum);
  }
  t.y[uint64_t{r} * t.y_row_stride + uint64_t{h} * t.y_head_stride + o] = sum;
}
template <bool kT>
void run(gpu::Stream& st, const HeadLinearTask& t) {
  const uint64_t n = uint64_t{t.rows} * t.heads * (kT ? t.weight.in : t.rows_used);
  const gpu::LaunchShape s{.grid_x = unsigned((n + 127) / 128), .threads = 128};
  if (t.dtype == Dtype::f8_e4m3) gpu::launch(st, s, naive<device::StoredF8, kT>, t);
  if (t.dtype == Dtype::bf16) gpu::launch(st, s, naive<device::StoredBf16, kT>, t);
  if (t.dtype == Dtype::f16) gpu::launch(st, s, naive<device::StoredF16, kT>, t);
  if (t.dtype == Dtype::f32) gpu::launch(st, s, naive<device::StoredF32, kT>, t);
}
}  // namespace
void head_linear(gpu::Stream& stream, const HeadLinearTask& task) {
  run<false>(stream, task);
}
void head_linear_transposed(gpu::Stream& stream, const HeadLinearTask& task) {
  run<true>(stream, task);
}
}  // namespace dspack::kernels::cuda
