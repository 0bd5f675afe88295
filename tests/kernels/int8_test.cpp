// Products of a CPU in precision int8: the bits of their definition (kernels/cpu/int8.inl.h), computed here one number
// at a time, on every instruction set, by any threads, alone and among other rows; and how near they are to exact ones.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/kernels/products_on_cpu.h"
#include "tests/support/numeric.h"

namespace dspack::test::int8_test {
namespace {

using kernels::Coding;
using kernels::GlobalScale;
using kernels::Precision;
using kernels::ScaleCoding;

constexpr uint32_t kGroup = 32;

WeightCase packed(Coding coding, uint32_t out, uint32_t in, uint32_t block_in, ScaleCoding scale,
                  GlobalScale global = GlobalScale::none) {
  return {Dtype::u8, out, in, 1, block_in, PackedCodes{coding, scale, global}};
}

/// Shapes of the product, and rows of x: blocks of one, two, three, four and all groups, ragged ends, more outputs and
/// rows than are multiplied at once, more blocks than are decoded at once.
std::vector<std::pair<WeightCase, uint32_t>> cases() {
  return {{packed(Coding::i4, 1, 1, 1, ScaleCoding::bf16), 1},
          {packed(Coding::i4, 70, 300, 32, ScaleCoding::bf16), 1},
          {packed(Coding::i4, 33, 2600, 32, ScaleCoding::f16), 3},
          {packed(Coding::i4, 9, 1088, 64, ScaleCoding::f32, GlobalScale::times), 2},
          {packed(Coding::i4, 37, 6400, 96, ScaleCoding::bf16), 1},
          {packed(Coding::i4, 18, 700, 700, ScaleCoding::f16), 5},
          {packed(Coding::u4, 41, 512, 128, ScaleCoding::f16), 1},
          {packed(Coding::u4, 67, 1280, 128, ScaleCoding::f16), 7},
          {packed(Coding::u4, 34, 330, 32, ScaleCoding::bf16, GlobalScale::times), 1},
          {packed(Coding::u4, 34, 330, 32, ScaleCoding::bf16, GlobalScale::times), 99},
          {{Dtype::i8, 29, 333, 0, 0}, 1},
          {{Dtype::i8, 50, 1100, 1, 1100}, 6},
          {{Dtype::i8, 36, 512, 2, 64}, 1},
          {{Dtype::i8, 36, 512, 2, 64}, 34}};
}

struct Group {
  float scale = 0;
  std::array<int, kGroup> codes{};
};

/// x in eight bits, by the definition. Ties go to even in the rounding mode that programs start with.
std::vector<Group> quantised(const float* x, uint32_t in) {
  std::vector<Group> groups(ceil_div(in, kGroup));
  for (uint32_t g = 0; g < groups.size(); ++g) {
    float most = 0;
    bool is_finite = true;
    const uint32_t end = std::min(in, (g + 1) * kGroup);
    for (uint32_t i = g * kGroup; i < end; ++i) {
      is_finite = is_finite && std::isfinite(x[i]);
      most = std::max(most, std::abs(x[i]));
    }
    if (!is_finite) groups[g].scale = std::numeric_limits<float>::quiet_NaN();
    if (!is_finite || most < std::ldexp(1.0F, -100)) continue;
    groups[g].scale = most / 127;
    const float factor = 127 / most;
    for (uint32_t i = g * kGroup; i < end; ++i)
      groups[g].codes[i - g * kGroup] = static_cast<int>(std::nearbyint(x[i] * factor));
  }
  return groups;
}

/// The scale of a weight's group, as a stored scale times the matrix's global one.
float scale_of(const RandomWeight& weight, uint32_t out, uint32_t column) {
  const WeightCase& shape = weight.shape;
  if (shape.block_out == 0) return 1;
  const size_t at = size_t{out / shape.block_out} * ceil_div(shape.in, shape.block_in) + column / shape.block_in;
  if (!shape.packed) return weight.scales[at];
  const uint8_t* const from = weight.packed_scales.data() + at * kernels::scale_bytes(shape.packed->scale);
  float stored = 0;
  uint16_t half = 0;
  if (shape.packed->scale == ScaleCoding::f32) {
    std::memcpy(&stored, from, sizeof stored);
  } else {
    std::memcpy(&half, from, sizeof half);
    stored = static_cast<float>(shape.packed->scale == ScaleCoding::f16 ? decode_half(half) : decode_bfloat(half));
  }
  return shape.packed->global == GlobalScale::none ? stored : stored * weight.global;
}

/// code - zero point
int integer_of(const RandomWeight& weight, uint32_t out, uint32_t column) {
  const WeightCase& shape = weight.shape;
  if (!shape.packed) return static_cast<int8_t>(weight.bytes[size_t{out} * shape.in + column]);
  const uint8_t byte = weight.bytes[size_t{out} * ceil_div(shape.in, 2) + column / 2];
  const int code = column % 2 == 0 ? byte & 0xf : byte >> 4;
  if (shape.packed->coding == Coding::i4) return code - 8;
  return code -
         weight.zeros[size_t{out / shape.block_out} * ceil_div(shape.in, shape.block_in) + column / shape.block_in];
}

float defined(const RandomWeight& weight, const std::vector<Group>& x, uint32_t out) {
  std::array<float, 4> chains{};
  const uint32_t in = weight.shape.in;
  for (uint32_t g = 0; g < x.size(); ++g) {
    int sum = 0;
    for (uint32_t i = g * kGroup; i < std::min(in, (g + 1) * kGroup); ++i)
      sum += x[g].codes[i - g * kGroup] * integer_of(weight, out, i);
    float& chain = chains[g % 4];
    chain = std::fma(static_cast<float>(sum), scale_of(weight, out, g * kGroup) * x[g].scale, chain);
  }
  return (chains[0] + chains[2]) + (chains[1] + chains[3]);
}

TEST_CASE("precision int8: the bits of its definition, on every instruction set, by any threads") {
  Random random;
  CAPTURE(random.seed());
  for (const auto& [shape, rows] : cases()) {
    CAPTURE(shape);
    CAPTURE(rows);
    const RandomWeight weight = random_weight(shape, random);
    auto x = random.normals(size_t{rows} * shape.in);
    for (uint32_t i = 0; i < shape.in; i += 7)  // ties
      x[i] = std::nearbyint(x[i] * 4) / 4;
    std::vector<float> wanted;
    for (uint32_t row = 0; row < rows; ++row) {
      const auto groups = quantised(x.data() + size_t{row} * shape.in, shape.in);
      for (uint32_t out = 0; out < shape.out; ++out)
        wanted.push_back(defined(weight, groups, out));
    }
    for (const std::string& set : sets_here()) {
      CAPTURE(set);
      for (const unsigned threads : {1U, 2U, 3U})
        CHECK(multiply_on(set, Precision::int8, weight, x, rows, threads) == wanted);
    }
  }
}

TEST_CASE("precision int8: a product depends on its own input row alone") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 300;  // more than are rounded at once
  for (const WeightCase& shape :
       {packed(Coding::i4, 37, 300, 32, ScaleCoding::bf16), WeightCase{Dtype::i8, 37, 300, 1, 300}}) {
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{kRows} * shape.in);
    const auto all = multiply_on("", Precision::int8, weight, x, kRows);
    for (const auto& [first, count] :
         std::initializer_list<std::pair<uint32_t, uint32_t>>{{0, 1}, {299, 1}, {7, 15}, {240, 33}}) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(size_t{first} * shape.in);
      const auto some = multiply_on("", Precision::int8, weight,
                                    {begin, begin + static_cast<std::ptrdiff_t>(size_t{count} * shape.in)}, count);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(size_t{first} * shape.out)));
    }
  }
}

TEST_CASE("precision int8: near the exact products of normal inputs") {
  // All outputs of a row have its inputs' errors, and weights whose codes have a mean other than 0 add these up alike:
  // a row is about one sample. Of 2,000 the ratio below differs from its mean by some 5 %.
  constexpr uint32_t kRows = 2000;
  Random random;
  CAPTURE(random.seed());
  for (const WeightCase& shape :
       {packed(Coding::i4, 64, 1024, 32, ScaleCoding::f16), packed(Coding::u4, 64, 1024, 128, ScaleCoding::f16),
        WeightCase{Dtype::i8, 64, 1024, 1, 1024}}) {
    CAPTURE(shape);
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{kRows} * shape.in);
    const auto exact = multiply_on("", Precision::exact, weight, x, kRows);
    const auto near = multiply_on("", Precision::int8, weight, x, kRows);
    double wrong = 0;
    double power = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      wrong += std::pow(static_cast<double>(near[i]) - static_cast<double>(exact[i]), 2);
      power += std::pow(static_cast<double>(exact[i]), 2);
    }
    // The largest of 32 normal values is about 2.4: steps of 2.4 / 127, a twelfth of whose square is 3.0e-5.
    CHECK(wrong / power < 4e-5);
    CHECK(wrong / power > 1e-5);
  }
}

TEST_CASE("precision int8: a group with NaN or infinity is NaN, the tiniest are zeros") {
  Random random;
  CAPTURE(random.seed());
  const WeightCase shape = packed(Coding::i4, 20, 256, 32, ScaleCoding::bf16);
  const RandomWeight weight = random_weight(shape, random);
  auto x = random.normals(size_t{4} * shape.in);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[shape.in + 200] = -std::numeric_limits<float>::infinity();
  std::fill_n(x.begin() + 2 * shape.in, shape.in, 1e-31F);
  std::fill_n(x.begin() + 3 * shape.in, shape.in, 1e-29F);
  for (const std::string& set : sets_here()) {
    CAPTURE(set);
    const auto y = multiply_on(set, Precision::int8, weight, x, 4);
    for (uint32_t out = 0; out < shape.out; ++out) {
      CHECK(std::isnan(y[out]));
      CHECK(std::isnan(y[shape.out + out]));
      CHECK(y[2 * shape.out + out] == 0);
    }
    CHECK(std::any_of(y.begin() + 3 * shape.out, y.end(), [](float value) { return value != 0; }));
  }
}

TEST_CASE("precision int8: the first half of a gated MLP has the bits of its three steps") {
  Random random;
  CAPTURE(random.seed());
  const WeightCase i4 = packed(Coding::i4, 70, 512, 32, ScaleCoding::bf16);
  const WeightCase u4 = packed(Coding::u4, 70, 512, 32, ScaleCoding::bf16);
  const WeightCase i8{Dtype::i8, 70, 512, 1, 32};
  const WeightCase fp8{Dtype::f8_e4m3, 70, 512, 64, 160};
  for (const auto& [gate_shape, up_shape] :
       {std::pair(i4, i4), std::pair(i4, u4), std::pair(i4, i8), std::pair(i8, fp8)}) {
    for (const uint32_t rows : {1U, 20U, 300U}) {
      auto device = kernels::make_cpu_device({.threads = 3, .instruction_set = "", .precision = Precision::int8});
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

TEST_CASE("precision int8: other codes as in precision bf16, blocks of other sizes exactly") {
  Random random;
  CAPTURE(random.seed());
  const auto same = [&](const WeightCase& shape, Precision other) {
    CAPTURE(shape);
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{3} * shape.in);
    CHECK(multiply_on("", Precision::int8, weight, x, 3) == multiply_on("", other, weight, x, 3));
  };
  same({Dtype::f8_e4m3, 20, 256, 128, 128}, Precision::bf16);
  same({Dtype::bf16, 20, 256, 0, 0}, Precision::bf16);
  same({Dtype::f32, 20, 96, 0, 0}, Precision::exact);
  same(packed(Coding::e2m1, 20, 96, 32, ScaleCoding::f8_e8m0), Precision::exact);
  same(packed(Coding::i4, 20, 96, 16, ScaleCoding::bf16), Precision::exact);
  same({Dtype::i8, 20, 96, 1, 48}, Precision::exact);
}

}  // namespace
}  // namespace dspack::test::int8_test
