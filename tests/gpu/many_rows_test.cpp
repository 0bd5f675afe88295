// Products of many rows in precisions bf16 and fp8 on a real GPU, with cuBLASLt where it is found and without it: whose
// layouts and scales are understood as NVIDIA means them shows here and nowhere else.
#include <doctest/doctest.h>

#include "tests/gpu/real_gpu.h"
#include "tests/kernels/linear_on_device.h"
#include "tests/kernels/put_experts.h"
#include "tests/support/numeric.h"

namespace dspack::test::many_rows_test {
namespace {

using kernels::Precision;

/// Rounding alone: BF16 has 8 bits, so inputs and decoded weights bring some 2.5e-6 together; E4M3 has 4, some 7e-4. A
/// scale at the wrong place would bring about 1.
double most_nmse(Precision precision, Dtype dtype) {
  return precision == Precision::fp8 && dtype == Dtype::f8_e4m3 ? 2e-3 : 1e-5;
}

}  // namespace

TEST_CASE("gpu: products of many rows, by cuBLASLt and by this program's kernels") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 515;
  for (const WeightCase& shape : {WeightCase{Dtype::f8_e4m3, 272, 1536, 128, 128},
                                  {Dtype::f8_e4m3, 272, 1664, 128, 128},  // scales that cuBLASLt wants padded
                                  {Dtype::bf16, 200, 1536, 0, 0}}) {
    CAPTURE(shape);
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{kRows} * shape.in);
    Doubles wanted;
    for (const Sum& sum : linear(weight.matrix, x, kRows, shape.in))
      wanted.push_back(sum.value);
    for (const Precision precision : {Precision::bf16, Precision::fp8}) {
      for (const char* cublaslt : {"", kernels::kNoCublasLt}) {
        const auto gpu = real_gpu({.precision = precision, .cublaslt = cublaslt});
        if (gpu == nullptr) return;
        const ErrorReport report = compare(multiply(*gpu, weight, x, kRows), wanted, shape.out);
        MESSAGE(gpu->description() << ": " << shape << ": " << report);
        CHECK((report.not_a_number == 0 && report.nmse <= most_nmse(precision, shape.dtype)));
      }
    }
  }
}

TEST_CASE("gpu: a prompt's experts, by cuBLASLt and by this program's kernels") {
  Random random;
  CAPTURE(random.seed());
  // Rows enough for the library (choose_experts_blas), and scales of down that it wants padded.
  for (const PartsCase& prompt :
       {PartsCase{Dtype::f8_e4m3, 3, 1024, 640, 128, 2, 700}, {Dtype::bf16, 3, 1024, 512, 0, 2, 700}}) {
    for (const Precision precision : {Precision::bf16, Precision::fp8}) {
      CAPTURE(to_string(precision));
      std::vector<std::vector<float>> results;
      for (const char* cublaslt : {"", kernels::kNoCublasLt}) {
        auto gpu = real_gpu({.precision = precision, .cublaslt = cublaslt});
        if (gpu == nullptr) return;
        Lab lab("gpu", std::move(gpu));
        Random again = random;
        results.push_back(PutExperts(lab, prompt, again).at_once(lab));
        MESSAGE(lab.device().description());
        CHECK(lab.device().description().find("refused") == std::string_view::npos);
      }
      // Weights rounded to BF16, sums of FP8 with fewer bits than FP32, roundings of inner values that fall the other
      // way; a scale or a row at a wrong place would bring 1e-2 and more.
      const ErrorReport report = compare(results[0], Doubles(results[1].begin(), results[1].end()), prompt.hidden);
      CHECK_MESSAGE((report.not_a_number == 0 && report.nmse < 1e-4), report);
      MESSAGE(report);
    }
  }
}

}  // namespace dspack::test::many_rows_test
