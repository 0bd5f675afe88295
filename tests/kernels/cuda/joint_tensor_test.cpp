// What neighbours of a layer do together on tensor cores has the bits of the operations alone there, too: inputs that
// the operation before has rounded are what a product would have rounded them to.
#include "tests/kernels/joint_lab.h"

namespace dspack::test::joint_tensor_test {
namespace {

constexpr const char* kSets[] = {"emulated bf16", "emulated fp8"};

}  // namespace

TEST_CASE("cuda: products of one input on tensor cores, and products that are added") {
  Random random;
  CAPTURE(random.seed());
  for (const char* set : kSets) {
    Lab lab(set);
    const auto fp8 = [](uint32_t out) { return WeightCase{Dtype::f8_e4m3, out, 656, 128, 128}; };
    const auto bf16 = [](uint32_t out) { return WeightCase{Dtype::bf16, out, 656, 0, 0}; };
    for (const uint32_t rows : {1U, 3U, 8U, 9U}) {
      check_products(lab, {fp8(37), fp8(203)}, rows, random);
      check_products(lab, {bf16(203), fp8(37), bf16(16)}, rows, random);
      check_products(lab, {bf16(37), bf16(64), {Dtype::f16, 20, 656, 0, 0}}, rows, random);
      // A few wide rows are divided among all warps of a block.
      check_products(lab, {{Dtype::f8_e4m3, 70, 4224, 128, 128}, {Dtype::f8_e4m3, 33, 4224, 128, 128}}, rows, random);
    }
  }
}

TEST_CASE("cuda: norms and activations that round for products on tensor cores") {
  Random random;
  CAPTURE(random.seed());
  for (const char* set : kSets) {
    Lab lab(set);
    for (const uint32_t rows : {1U, 3U, 8U, 9U}) {
      check_norm(lab, {{Dtype::f8_e4m3, 20, 272, 128, 128}, {Dtype::bf16, 5, 272, 0, 0}}, rows, random);
      check_norm(lab, {{Dtype::bf16, 5, 1040, 0, 0}, {Dtype::f16, 5, 1040, 0, 0}}, rows, random);
      for (const Dtype dtype : {Dtype::f8_e4m3, Dtype::bf16})
        check_mlp(lab, dtype, rows, random);
    }
  }
}

TEST_CASE("cuda: a MoE block on tensor cores") {
  Random random;
  CAPTURE(random.seed());
  for (const char* set : kSets) {
    Lab lab(set);
    for (const uint32_t tokens : {1U, 2U, 8U, 9U}) {
      const PartsCase fp8{Dtype::f8_e4m3, 5, 272, 48, 128, 3, tokens};
      check_block(lab, {fp8, Dtype::f8_e4m3, 48}, random);
      check_block(lab, {fp8, Dtype::f8_e4m3, 176}, random);
      check_block(lab, {fp8, Dtype::bf16, 48}, random);
      check_block(lab, {fp8, Dtype::f8_e4m3, 0}, random);
      const PartsCase bf16{Dtype::bf16, 4, 1040, 40, 0, 2, tokens};  // 8 parts of a row of gate and up, 4 of down
      check_block(lab, {bf16, Dtype::bf16, 136}, random);
      check_block(lab, {bf16, Dtype::bf16, 1064}, random);
    }
  }
}

}  // namespace dspack::test::joint_tensor_test
