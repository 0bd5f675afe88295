// Weights at DeepSeek-V3's shapes for bench_cuda.
// Threads, lifetime, errors: as cuda_bench.h; a weight borrows the memory that it lies in.
#pragma once

#include "tests/bench/cuda_bench.h"

namespace dspack::bench {

struct Shape {
  const char* name;
  uint32_t out;
  uint32_t in;
  Dtype dtype;
  [[nodiscard]] double values() const { return static_cast<double>(out) * in; }
  [[nodiscard]] double bytes() const { return values() * bits_of(dtype) / 8; }
};

/// One for each block of 128 x 128.
[[nodiscard]] kernels::Slice scales(Memory& memory, uint32_t out, uint32_t in);

/// FP8 with scales, any other type without.
[[nodiscard]] kernels::Weight weight_of(const Shape& shape, kernels::Slice data, kernels::Slice scale);

/// The routed experts of one layer, in one buffer: 256, or as many as fit.
class RoutedExperts {
 public:
  RoutedExperts(CudaBench& bench, Memory& memory);

  [[nodiscard]] uint32_t hidden() const { return hidden_; }
  [[nodiscard]] uint32_t inner() const { return inner_; }
  [[nodiscard]] uint32_t count() const { return count_; }
  [[nodiscard]] double values_of_one() const { return 3.0 * hidden_ * inner_; }
  [[nodiscard]] const kernels::ExpertTable& table() const { return *table_; }
  [[nodiscard]] kernels::Slice make_scratch(CudaBench& bench, Memory& memory, uint32_t tokens, uint32_t top_k) const;

 private:
  uint32_t hidden_, inner_, count_ = 0;
  std::unique_ptr<kernels::ExpertTable> table_;
};

}  // namespace dspack::bench
