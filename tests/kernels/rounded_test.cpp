// Products of a CPU in precisions bf16 and amx: what rounded inputs give; in bf16 with the bits of exact products of
// them on every instruction set, in amx with those of the tiles' documented order; by any threads, alone and among
// other rows.
#include <algorithm>

#include "tests/kernels/cuda/rounded_inputs.h"
#include "tests/kernels/products_on_cpu.h"
#include "tests/support/numeric.h"

namespace dspack::test::rounded_test {
namespace {

using kernels::Precision;

/// Shapes of the product, and rows of x.
std::vector<std::pair<WeightCase, uint32_t>> cases() {
  return {{{Dtype::f8_e4m3, 1, 1, 0, 0}, 1},         {{Dtype::f8_e4m3, 33, 300, 128, 128}, 5},
          {{Dtype::f8_e4m3, 70, 512, 64, 160}, 17},  {{Dtype::f8_e4m3, 6, 70, 1, 70}, 2},
          {{Dtype::f8_e4m3, 130, 257, 1, 1000}, 70}, {{Dtype::f8_e4m3, 40, 1090, 128, 128}, 97},
          {{Dtype::bf16, 31, 33, 0, 0}, 1},          {{Dtype::bf16, 65, 700, 0, 0}, 34},
          {{Dtype::bf16, 16, 128, 16, 32}, 16}};
}

/// x rounded to BF16.
std::vector<float> rounded(const std::vector<float>& x) {
  std::vector<float> to;
  for (const double value : rounded_inputs(x, 1, static_cast<uint32_t>(x.size()), Precision::bf16, Dtype::bf16))
    to.push_back(static_cast<float>(value));
  return to;
}

/// A product in the order of kernels/cpu/amx.cpp.
float by_tiles(const RandomWeight& weight, const float* x, uint32_t out) {
  const uint32_t in = weight.shape.in;
  const uint32_t block_in = weight.scales.empty() ? in : weight.shape.block_in;
  const size_t across = ceil_div(in, block_in);
  float total = 0;
  for (uint32_t begin = 0; begin < in; begin += block_in) {
    const uint32_t end = std::min(begin + block_in, in);
    const float scale =
        weight.scales.empty() ? 1 : weight.scales[out / weight.shape.block_out * across + begin / block_in];
    float block = 0;
    for (uint32_t step = begin; step < end; step += kernels::kRoundedStep) {
      float sums[2] = {};
      for (uint32_t i = step; i < std::min(step + kernels::kRoundedStep, end); ++i) {
        float& sum = sums[(i - step) % 2];
        sum = std::fma(x[i], static_cast<float>(weight.matrix.at(out, i) / static_cast<double>(scale)), sum);
      }
      block = block + (sums[0] + sums[1]);
    }
    total = std::fma(block, scale, total);
  }
  return total;
}

TEST_CASE("precision bf16 on a CPU: the bits of exact products of rounded inputs, on every instruction set") {
  Random random;
  CAPTURE(random.seed());
  const std::vector<std::string> sets = sets_here();
  for (const auto& [shape, rows] : cases()) {
    CAPTURE(shape);
    CAPTURE(rows);
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{rows} * shape.in);
    const auto wanted = multiply_on("scalar", Precision::exact, weight, rounded(x), rows, 1);
    CHECK(wanted != multiply_on("scalar", Precision::exact, weight, x, rows, 1));
    for (const std::string& set : sets) {
      CAPTURE(set);
      for (const unsigned threads : {1U, 2U, 3U})
        CHECK(multiply_on(set, Precision::bf16, weight, x, rows, threads) == wanted);
    }
  }
}

TEST_CASE("precision amx: the bits of rounded inputs in the order of the tiles, by any threads") {
  if (!runs_here("amx")) {
    MESSAGE("this processor has no AMX tiles: precision amx was not tried");
    return;
  }
  Random random;
  CAPTURE(random.seed());
  for (const auto& [shape, rows] : cases()) {
    CAPTURE(shape);
    CAPTURE(rows);
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{rows} * shape.in);
    const auto inputs = rounded(x);
    std::vector<float> wanted;
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t out = 0; out < shape.out; ++out)
        wanted.push_back(by_tiles(weight, inputs.data() + size_t{row} * shape.in, out));
    }
    for (const unsigned threads : {1U, 2U, 3U})
      CHECK(multiply_on("amx", Precision::amx, weight, x, rows, threads) == wanted);
  }
}

TEST_CASE("precision bf16 on a CPU: a product hangs on its own input row alone") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 300;  // more than are rounded at once
  for (const WeightCase& shape :
       {WeightCase{Dtype::f8_e4m3, 37, 300, 128, 128}, WeightCase{Dtype::bf16, 37, 300, 0, 0}}) {
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{kRows} * shape.in);
    const auto all = multiply_on("", Precision::bf16, weight, x, kRows);
    for (const auto& [first, count] :
         std::initializer_list<std::pair<uint32_t, uint32_t>>{{0, 1}, {299, 1}, {7, 15}, {240, 33}}) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(size_t{first} * shape.in);
      const auto some = multiply_on("", Precision::bf16, weight,
                                    {begin, begin + static_cast<std::ptrdiff_t>(size_t{count} * shape.in)}, count);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(size_t{first} * shape.out)));
    }
  }
}

TEST_CASE("precision bf16 on a CPU: the first half of a gated MLP has the bits of its three steps") {
  Random random;
  CAPTURE(random.seed());
  const WeightCase fp8{Dtype::f8_e4m3, 70, 512, 64, 160};
  const WeightCase exact{Dtype::f32, 70, 512, 0, 0};  // is not rounded
  for (const auto& [gate_shape, up_shape] : {std::pair(fp8, fp8), std::pair(fp8, exact), std::pair(exact, exact)}) {
    for (const uint32_t rows : {1U, 20U, 300U}) {
      auto device = kernels::make_cpu_device({.threads = 3, .instruction_set = "", .precision = Precision::bf16});
      REQUIRE(device.has_value());
      Lab lab("", std::move(*device));
      const kernels::Weight gate = random_weight(gate_shape, random).put(lab);
      const kernels::Weight up = random_weight(up_shape, random).put(lab);
      const kernels::Rows x{lab.put(random.normals(size_t{rows} * 512)), rows, 512, 512};
      const auto place = [&] { return kernels::Rows{lab.poisoned(size_t{rows} * 70), rows, 70, 70}; };
      const kernels::Rows y = place(), scratch = place(), wanted = place(), other = place();
      lab.queue().gated_linear(gate, up, x, y, scratch);
      lab.queue().linear(gate, x, wanted);
      lab.queue().linear(up, x, other);
      lab.queue().silu_multiply(wanted, other);
      CHECK(lab.get(y.data, size_t{rows} * 70) == lab.get(wanted.data, size_t{rows} * 70));
    }
  }
}

TEST_CASE("precision bf16 on a CPU: NaN and infinity stay what they are") {
  Random random;
  CAPTURE(random.seed());
  const WeightCase shape{Dtype::f8_e4m3, 40, 160, 128, 128};
  RandomWeight weight = random_weight(shape, random);
  weight.bytes[size_t{3} * shape.in + 130] = 0xff;
  auto x = random.normals(size_t{2} * shape.in);
  x[shape.in + 5] = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& set : sets_here()) {
    CAPTURE(set);
    const auto y = multiply_on(set, Precision::bf16, weight, x, 2);
    for (uint32_t out = 0; out < shape.out; ++out) {
      CHECK(std::isnan(y[out]) == (out == 3));
      CHECK(std::isnan(y[shape.out + out]));
    }
  }
}

TEST_CASE("precision bf16 on a CPU: other codes and blocks are multiplied exactly") {
  Random random;
  CAPTURE(random.seed());
  for (const WeightCase& shape : {WeightCase{Dtype::f16, 20, 96, 0, 0}, WeightCase{Dtype::f32, 20, 96, 0, 0},
                                  WeightCase{Dtype::i8, 20, 96, 1, 96}, WeightCase{Dtype::f8_e4m3, 20, 96, 16, 48},
                                  WeightCase{Dtype::u8, 20, 96, 1, 32, kPackedCodes[0]}}) {
    CAPTURE(shape);
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{3} * shape.in);
    CHECK(multiply_on("", Precision::bf16, weight, x, 3) == multiply_on("", Precision::exact, weight, x, 3));
  }
  CHECK(
      kernels::make_cpu_device({.threads = 1, .instruction_set = "scalar", .precision = Precision::amx}).error().kind ==
      ErrorKind::unsupported);
  CHECK(kernels::make_cpu_device({.threads = 1, .instruction_set = {}, .precision = Precision::split}).error().kind ==
        ErrorKind::unsupported);
  CHECK(kernels::make_cpu_device({.threads = 1, .instruction_set = {}, .precision = Precision::fp8}).error().kind ==
        ErrorKind::unsupported);
}

}  // namespace
}  // namespace dspack::test::rounded_test
