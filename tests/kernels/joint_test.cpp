// Operations that neighbours of a layer do together have the bits of the operations that they stand for.
#include "tests/kernels/joint_lab.h"

namespace dspack::test::joint_test {

KERNEL_CASE("linear_each, add_linear: the bits of products alone, and of add") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  const auto fp8 = [](uint32_t out) { return WeightCase{Dtype::f8_e4m3, out, 656, 128, 128}; };
  const auto bf16 = [](uint32_t out) { return WeightCase{Dtype::bf16, out, 656, 0, 0}; };
  for (const uint32_t rows : {1U, 3U, 8U, 9U}) {
    check_products(lab, {fp8(37), fp8(203)}, rows, random);
    check_products(lab, {bf16(203), bf16(37), bf16(16), bf16(64)}, rows, random);
    check_products(lab, {bf16(20), fp8(203), bf16(5)}, rows, random);
    check_products(lab, {{Dtype::bf16, 20, 645, 0, 0}, {Dtype::bf16, 21, 645, 0, 0}}, rows, random);
    check_products(lab, {fp8(3), fp8(4), fp8(5), fp8(6), fp8(7)}, rows, random);
  }
  // A few wide rows are shared by several warps.
  check_products(lab, {{Dtype::bf16, 70, 4224, 0, 0}, {Dtype::bf16, 33, 4224, 0, 0}}, 2, random);
}

KERNEL_CASE("run_mlp, add_mlp: the bits of the steps") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  for (const uint32_t rows : {1U, 3U, 9U}) {
    for (const Dtype dtype : {Dtype::f8_e4m3, Dtype::bf16})
      check_mlp(lab, dtype, rows, random);
  }
}

KERNEL_CASE("rms_norm_for: the bits of rms_norm") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  for (const uint32_t rows : {1U, 3U, 9U})
    check_norm(lab, {{Dtype::f8_e4m3, 20, 272, 128, 128}, {Dtype::bf16, 5, 272, 0, 0}}, rows, random);
}

KERNEL_CASE("add_moe: the bits of experts, shared expert and sums alone") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  for (const uint32_t tokens : {1U, 2U, 4U, 9U}) {
    const PartsCase fp8{Dtype::f8_e4m3, 5, 272, 48, 128, 3, tokens};
    check_block(lab, {fp8, Dtype::f8_e4m3, 48}, random);   // as an expert
    check_block(lab, {fp8, Dtype::f8_e4m3, 176}, random);  // wider
    check_block(lab, {fp8, Dtype::bf16, 48}, random);      // stored otherwise
    check_block(lab, {fp8, Dtype::f8_e4m3, 0}, random);    // none
    const PartsCase bf16{Dtype::bf16, 4, 1040, 40, 0, 2, tokens};
    check_block(lab, {bf16, Dtype::bf16, 80}, random);    // rows of gate and up are shared by several warps
    check_block(lab, {bf16, Dtype::bf16, 1064}, random);  // and rows of down
    check_block(lab, {{Dtype::f16, 4, 36, 17, 0, 2, tokens}, Dtype::f16, 20}, random);
  }
}

}  // namespace dspack::test::joint_test
