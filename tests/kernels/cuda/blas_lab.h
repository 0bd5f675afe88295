// Products by LinearBlas on the emulated GPU with its emulated cuBLASLt, and what they must be.
// Threads: one thread a lab. Lifetime: a lab's places live as long as it. Errors: fail the test case.
#pragma once

#include <algorithm>

#include "kernels/cuda/linear/linear_blas.h"
#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/cuda/rounded_inputs.h"
#include "tests/kernels/weights.h"
#include "tests/support/emulated_gpu/emulated_cublaslt.h"
#include "tests/support/numeric.h"

namespace dspack::test {

struct BlasCase {
  WeightCase weight;
  uint32_t rows = 0;
  kernels::Precision precision = kernels::Precision::bf16;
  kernels::cuda::BlasPath path = kernels::cuda::BlasPath::none;  // that it shall take
  kernels::cuda::BlasLimits limits = {.weight_bytes = 1 << 20, .input_bytes = 1 << 20, .library_bytes = 1 << 20};
};

inline std::ostream& operator<<(std::ostream& out, const BlasCase& c) {
  return out << c.weight << ", " << c.rows << " rows, " << to_string(c.precision);
}

/// A product with poisoned results; rows of inputs and results lie four values further apart than they are long.
class BlasLab {
 public:
  BlasLab(const BlasCase& which, Random& random)
      : case_(which),
        gpu_(random.below(1000)),
        weight_(random_weight(which.weight, random)),
        x_(random.normals(size_t{which.rows} * which.weight.in)) {
    const uint32_t in = which.weight.in;
    std::vector<float> strided(size_t{which.rows} * (in + kGap), poison());
    for (size_t row = 0; row < which.rows; ++row)
      std::copy_n(x_.begin() + static_cast<std::ptrdiff_t>(row * in), in,
                  strided.begin() + static_cast<std::ptrdiff_t>(row * (in + kGap)));
    y_stride_ = static_cast<uint32_t>(round_up(which.weight.out, 4)) + kGap;
    const float* scales = weight_.scales.empty() ? nullptr : gpu_.put(weight_.scales);
    task_ = {.weight = {form_of(which.weight), {gpu_.put(weight_.bytes), scales}},
             .x = {.data = gpu_.put(strided), .stride = in + kGap},
             .y = {.data = gpu_.poisoned(values()), .stride = y_stride_},
             .rows = which.rows};
  }

  [[nodiscard]] gpu::Stream& stream() { return gpu_.stream(); }
  [[nodiscard]] const kernels::cuda::LinearTask& task() const { return task_; }
  void poison_results() {
    const std::vector<float> poisoned(values(), poison());
    stream().copy_to_device(task_.y.data, poisoned.data(), poisoned.size() * sizeof(float));
    stream().synchronize();
  }
  [[nodiscard]] std::vector<float> results() {
    return dense(gpu_.get(task_.y.data, values()), case_.rows, case_.weight.out, y_stride_);
  }

  /// Values that are farther from what they must be than rounding explains. The emulated library rounds once; a row
  /// that is left to linear_tensor is rounded for each 16 columns.
  [[nodiscard]] size_t wrong(const std::vector<float>& got) const {
    const bool is_fp8 = case_.path == kernels::cuda::BlasPath::fp8;
    const auto inputs = rounded_inputs(x_, case_.rows, case_.weight.in,
                                       is_fp8 ? kernels::Precision::fp8 : kernels::Precision::bf16, case_.weight.dtype);
    const uint32_t by_library = is_fp8 ? case_.rows / 4 * 4 : case_.rows;
    Doubles wanted;
    Doubles bound;
    for (uint32_t row = 0; row < case_.rows; ++row) {
      for (uint32_t out = 0; out < case_.weight.out; ++out) {
        Sum sum;
        for (uint32_t in = 0; in < case_.weight.in; ++in)
          sum.add(inputs[size_t{row} * case_.weight.in + in] * weight_at(out, in));
        wanted.push_back(sum.value);
        const double steps = row < by_library ? 1 : case_.weight.in / 16.0 + 16;
        bound.push_back(1.001 * steps * kRoundoff * sum.magnitude + 1e-40);
      }
    }
    return beyond_bound(got, wanted, bound) + (got.size() == wanted.size() ? 0 : 1);
  }

 private:
  static constexpr uint32_t kGap = 4;
  [[nodiscard]] size_t values() const { return size_t{case_.rows} * y_stride_; }
  [[nodiscard]] double weight_at(uint32_t out, uint32_t in) const {
    const double exact = weight_.matrix.at(out, in);
    if (case_.path != kernels::cuda::BlasPath::bf16_decoded) return exact;
    return round_to_bf16(static_cast<double>(static_cast<float>(exact)));
  }

  BlasCase case_;
  GpuLab gpu_;
  RandomWeight weight_;
  std::vector<float> x_;
  uint32_t y_stride_ = 0;
  kernels::cuda::LinearTask task_;
};

/// The library, and what multiplies with it, on a card that is known as `major`.0.
struct BlasUnderTest {
  explicit BlasUnderTest(const BlasCase& which, unsigned major = 9)
      : use(std::make_shared<kernels::cuda::BlasUse>(gpu::cublaslt::open_library({}).value())),
        blas(use, {.name = {}, .major = major, .minor = 0}, which.precision, which.limits) {}
  std::shared_ptr<kernels::cuda::BlasUse> use;
  kernels::cuda::LinearBlas blas;
};

}  // namespace dspack::test
