#include "kernels/cuda/linear/linear.h"

#include <algorithm>

#include "tests/kernels/cuda/rounded_inputs.h"
#include "tests/kernels/weights.h"
#include "tests/support/emulated_gpu/emulator.h"
#include "tests/support/numeric.h"

namespace dspack::test::linear_tensor_test {
namespace {

namespace cuda = kernels::cuda;
using kernels::Precision;

struct Case {
  WeightCase weight;
  uint32_t rows;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.weight << ", " << c.rows << " rows";
}

/// Device memory that a test fills.
template <class T>
T* on_device(const std::vector<T>& values, std::vector<void*>& all) {
  void* memory = gpu::allocate(0, values.size() * sizeof(T)).value();
  std::memcpy(memory, values.data(), values.size() * sizeof(T));
  all.push_back(memory);
  return static_cast<T*>(memory);
}

std::vector<float> run(const RandomWeight& weight, const std::vector<float>& x, uint32_t rows, Precision precision,
                       uint64_t seed) {
  gpu::configure_emulator({.seed = seed});
  std::vector<void*> memory;
  kernels::cuda::Matrix matrix{form_of(weight.shape), {on_device(weight.bytes, memory)}};
  weight.put_planes(matrix.planes, [&](const auto& values) { return on_device(values, memory); });
  REQUIRE(kernels::cuda::fits_tensor_cores(cuda::form_of(matrix)));
  float* y = on_device(std::vector<float>(size_t{rows} * matrix.out, poison()), memory);
  const auto stream = gpu::make_stream(0);
  const auto rounded =
      cuda::lay_out_rounded(on_device(std::vector<uint8_t>(cuda::rounded_bytes(rows, matrix.in), 0xff), memory), rows,
                            matrix.in, cuda::input_rounding(matrix.coding, precision));
  cuda::run_round_rows(
      *stream,
      {.x = {.data = on_device(x, memory), .stride = matrix.in}, .rows = rows, .in = matrix.in, .to = rounded});
  cuda::linear_tensor(*stream, {.weight = matrix, .x = rounded, .y = {.data = y, .stride = matrix.out}, .rows = rows});
  stream->synchronize();
  std::vector<float> result(y, y + size_t{rows} * matrix.out);
  for (void* place : memory)
    gpu::release(place);
  return result;
}

void check(const Case& c, Precision precision, Random& random) {
  CAPTURE(c);
  CAPTURE(to_string(precision));
  const RandomWeight weight = random_weight(c.weight, random);
  const auto x = random.normals(size_t{c.rows} * c.weight.in);
  const auto got = run(weight, x, c.rows, precision, random.below(1000));
  const auto inputs = rounded_inputs(x, c.rows, c.weight.in, precision, c.weight.packed ? Dtype::bf16 : c.weight.dtype);
  Doubles wanted;
  Doubles bound;
  for (uint32_t row = 0; row < c.rows; ++row) {
    for (uint32_t out = 0; out < c.weight.out; ++out) {
      Sum sum;
      for (uint32_t in = 0; in < c.weight.in; ++in)
        sum.add(inputs[size_t{row} * c.weight.in + in] * weight.matrix.at(out, in));
      wanted.push_back(sum.value);
      // Products are exact. A tile of 16 columns is added with one rounding here (hardware: a few), then the chunks by
      // fma, then up to eight warps; the scales' product and, for fp8, its division by the same bound.
      // Four bits take an fma each 32 columns, or two products and two fma.
      const double steps = c.weight.in / (c.weight.packed ? 4.0 : 16.0) + 16;
      bound.push_back(1.001 * steps * kRoundoff * sum.magnitude + 1e-40);
    }
  }
  CHECK(beyond_bound(got, wanted, bound) == 0);
}

constexpr Precision kModes[] = {Precision::bf16, Precision::fp8};

}  // namespace

TEST_CASE("cuda: products on the tensor cores equal those of rounded inputs") {
  Random random;
  CAPTURE(random.seed());
  for (const Precision precision : kModes) {
    for (const Case& c : std::initializer_list<Case>{
             {{Dtype::f8_e4m3, 1, 16, 0, 0}, 1},
             {{Dtype::f8_e4m3, 130, 272, 128, 128}, 3},
             {{Dtype::f8_e4m3, 33, 304, 128, 64}, 9},
             {{Dtype::f8_e4m3, 17, 1600, 1, 1600}, 17},
             {{Dtype::f8_e4m3, 70, 512, 70, 512}, 33},
             {{Dtype::f8_e4m3, 20, 640, 16, 128}, 70},
             {{Dtype::bf16, 19, 8, 0, 0}, 2},
             {{Dtype::bf16, 48, 328, 0, 0}, 12},
             {{Dtype::bf16, 33, 1200, 3, 96}, 5},
             {{Dtype::bf16, 15, 1200, 3, 96}, 40},
             {{Dtype::bf16, 40, 264, 0, 0}, 65},
         })
      check(c, precision, random);
  }
}

TEST_CASE("cuda: codes of four bits on the tensor cores, with every way to store their scales") {
  Random random;
  CAPTURE(random.seed());
  for (const PackedCodes& packed : kPackedCodes) {
    if (packed.coding == kernels::Coding::e2m1) continue;  // below
    for (const auto& [out, in, block_out, block_in, rows] :
         std::initializer_list<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>>{{1, 32, 1, 32, 1},
                                                                                             {33, 160, 1, 16, 9},
                                                                                             {130, 288, 1, 32, 3},
                                                                                             {19, 672, 1, 48, 17},
                                                                                             {40, 1600, 4, 160, 40},
                                                                                             {17, 640, 17, 640, 70}})
      check({{Dtype::u8, out, in, block_out, block_in, packed}, rows}, Precision::bf16, random);
    check({{Dtype::u8, 70, 512, 1, 64, packed}, 33}, Precision::fp8, random);  // inputs as in bf16
  }
  check({{Dtype::u8, 20, 96, 0, 0, PackedCodes{}}, 5}, Precision::bf16, random);
}

TEST_CASE("cuda: E2M1 on the tensor cores, whose scales are folded into the weights") {
  Random random;
  CAPTURE(random.seed());
  for (const PackedCodes& packed : kPackedCodes) {
    if (packed.coding != kernels::Coding::e2m1 || packed.scale == kernels::ScaleCoding::f32) continue;
    for (const uint32_t group : {16U, 32U}) {
      for (const auto& [out, in, rows] : std::initializer_list<std::tuple<uint32_t, uint32_t, uint32_t>>{
               {1, 128, 1}, {33, 256, 9}, {130, 640, 3}, {19, 1152, 17}, {40, 3200, 1}, {21, 512, 40}, {17, 384, 70}})
        check({{Dtype::u8, out, in, 1, group, packed}, rows}, Precision::bf16, random);
    }
  }
  // Scales that BF16 does not hold, or for other numbers of columns, or rows of parts of chunks.
  const auto fits = [](uint32_t in, uint32_t group, kernels::ScaleCoding scale) {
    return cuda::fits_tensor_cores({{kernels::Coding::e2m1, 8, in, 1, group, scale}, true});
  };
  CHECK(fits(256, 32, kernels::ScaleCoding::f8_e8m0));
  CHECK(fits(256, 16, kernels::ScaleCoding::f8_e4m3));
  CHECK_FALSE(fits(256, 32, kernels::ScaleCoding::f32));
  CHECK_FALSE(fits(256, 64, kernels::ScaleCoding::f8_e8m0));
  CHECK_FALSE(fits(288, 32, kernels::ScaleCoding::f8_e8m0));
}

TEST_CASE("cuda: E2M1 on the tensor cores is exact for every scale of eight bits") {
  constexpr uint32_t kIn = 128;
  for (const kernels::ScaleCoding coding : {kernels::ScaleCoding::f8_e8m0, kernels::ScaleCoding::f8_e4m3}) {
    for (uint32_t code = 0; code < 256; ++code) {
      CAPTURE(code);
      const bool is_e8m0 = coding == kernels::ScaleCoding::f8_e8m0;
      const double scale = is_e8m0 ? std::exp2(static_cast<int>(code) - 127) : decode_e4m3(static_cast<uint8_t>(code));
      if (is_e8m0 ? code == 255 : std::isnan(scale)) continue;
      RandomWeight weight{.bytes = {},
                          .scales = {},
                          .matrix = {16, kIn, {}},
                          .shape = {Dtype::u8, 16, kIn, 1, 32, PackedCodes{kernels::Coding::e2m1, coding}},
                          .packed_scales = std::vector<uint8_t>(16 * kIn / 32, static_cast<uint8_t>(code)),
                          .zeros = {}};
      for (uint32_t row = 0; row < 16; ++row)  // each row has one code
        weight.bytes.insert(weight.bytes.end(), kIn / 2, static_cast<uint8_t>(row * 17));
      std::vector<float> x(kIn, 0.0F);
      x[code % kIn] = 1;
      const auto got = run(weight, x, 1, Precision::bf16, code);
      for (uint32_t row = 0; row < 16; ++row)
        CHECK(got[row] == static_cast<float>(decode_nibble(kernels::Coding::e2m1, row) * scale));
    }
  }
}

TEST_CASE("cuda: DeepSeek-V3's shapes on the tensor cores, few columns") {
  Random random;
  CAPTURE(random.seed());
  check({{Dtype::f8_e4m3, 576, 1536, 128, 128}, 1}, Precision::bf16, random);
  check({{Dtype::f8_e4m3, 64, 7168, 128, 128}, 8}, Precision::fp8, random);
}

TEST_CASE("cuda: a product on the tensor cores hangs on its own input row alone") {
  Random random;
  CAPTURE(random.seed());
  for (const Precision precision : kModes) {
    for (const WeightCase& shape : {WeightCase{Dtype::f8_e4m3, 37, 640, 128, 128}, WeightCase{Dtype::bf16, 37, 640},
                                    WeightCase{Dtype::u8, 37, 640, 1, 32, kPackedCodes[0]},
                                    WeightCase{Dtype::u8, 37, 640, 1, 16, kPackedCodes[5]}}) {
      const RandomWeight weight = random_weight(shape, random);
      constexpr uint32_t kRows = 70;
      const auto x = random.normals(size_t{kRows} * shape.in);
      const auto all = run(weight, x, kRows, precision, 1);
      CHECK(all == run(weight, x, kRows, precision, 2));  // another order of threads
      for (const uint32_t row : {0U, 7U, 8U, 69U}) {
        const auto first = x.begin() + static_cast<std::ptrdiff_t>(size_t{row} * shape.in);
        const auto alone = run(weight, {first, first + shape.in}, 1, precision, 3);
        CHECK(
            std::equal(alone.begin(), alone.end(), all.begin() + static_cast<std::ptrdiff_t>(size_t{row} * shape.out)));
      }
    }
  }
}

TEST_CASE("cuda: BF16 without scales has the bits of scales of 1 on the tensor cores") {
  Random random;
  CAPTURE(random.seed());
  for (const WeightCase& shape :
       {WeightCase{Dtype::bf16, 19, 8}, WeightCase{Dtype::bf16, 48, 328}, WeightCase{Dtype::bf16, 33, 1200}}) {
    const RandomWeight weight = random_weight(shape, random);
    for (const uint32_t rows : {1U, 8U, 9U, 40U, 65U}) {
      const auto x = random.normals(size_t{rows} * shape.in);
      CHECK(run(weight, x, rows, Precision::bf16, 1) == run(with_scales_of_one(weight), x, rows, Precision::bf16, 2));
    }
  }
}

TEST_CASE("cuda: inputs too small for a scale are zeros to the tensor cores, and no NaN") {
  Random random;
  CAPTURE(random.seed());
  const RandomWeight weight = random_weight({Dtype::f8_e4m3, 32, 256, 128, 128}, random);
  std::vector<float> x(size_t{2} * weight.shape.in, 1.0F);
  for (size_t in = 0; in < weight.shape.in; ++in)
    x[in] = in % 3 == 0 ? 0.0F : 1e-43F;  // / 448: below FP32's smallest number
  const auto got = run(weight, x, 2, Precision::fp8, random.below(1000));
  for (uint32_t out = 0; out < weight.shape.out; ++out) {
    CHECK(got[out] == 0);
    CHECK(std::isfinite(got[weight.shape.out + out]));
  }
}

TEST_CASE("cuda: what the tensor cores do not multiply exactly is left to the others") {
  const auto fits = [](const kernels::cuda::Matrix& matrix, kernels::Coding coding) {
    kernels::cuda::MatrixForm form = cuda::form_of(matrix);
    form.coding = coding;
    return kernels::cuda::fits_tensor_cores(form);
  };
  using kernels::Coding;
  kernels::cuda::Matrix matrix{{Coding::f8_e4m3, 8, 64}, {reinterpret_cast<const void*>(0x1000)}};
  const float scale = 1;
  CHECK(fits(matrix, Coding::f8_e4m3));
  CHECK(fits(matrix, Coding::bf16));
  CHECK(fits(matrix, Coding::i4));
  CHECK_FALSE(fits(matrix, Coding::e2m1));  // it has no scales
  CHECK(fits(matrix, Coding::u4));
  CHECK_FALSE(fits(matrix, Coding::f16));
  CHECK_FALSE(fits(matrix, Coding::f32));
  matrix.planes[kernels::kCodes] = reinterpret_cast<const void*>(0x1008);
  CHECK_FALSE(fits(matrix, Coding::f8_e4m3));
  matrix.planes[kernels::kCodes] = reinterpret_cast<const void*>(0x1000);
  matrix.in = 65;
  CHECK_FALSE(fits(matrix, Coding::f8_e4m3));
  matrix.in = 192;
  matrix.planes[kernels::kScales] = &scale;
  matrix.block_out = 1;
  matrix.block_in = 32;
  CHECK_FALSE(fits(matrix, Coding::f8_e4m3));
  CHECK(fits(matrix, Coding::bf16));
  CHECK(fits(matrix, Coding::i4));
  matrix.block_in = 24;
  CHECK_FALSE(fits(matrix, Coding::i4));
}

TEST_CASE("cuda: launches on the tensor cores are within every card's limits, their sums fixed by the weight") {
  constexpr unsigned kSharedOfAll = 99 << 10;
  for (const auto& [dtype, out, in] :
       std::initializer_list<std::tuple<Dtype, uint32_t, uint32_t>>{{Dtype::f8_e4m3, 1536, 7168},
                                                                    {Dtype::f8_e4m3, 18432, 7168},
                                                                    {Dtype::bf16, 129280, 7168},
                                                                    {Dtype::f8_e4m3, 576, 7168},
                                                                    {Dtype::bf16, 256, 7168},
                                                                    {Dtype::f8_e4m3, 16, 16}}) {
    const unsigned warps = kernels::cuda::choose_linear_tensor(*kernels::coding_of(dtype), out, in, 1).warps_a_row;
    for (const uint32_t rows : {1U, 8U, 9U, 64U, 65U, 4096U, 5'000'000U}) {
      const kernels::cuda::TensorChoice choice =
          kernels::cuda::choose_linear_tensor(*kernels::coding_of(dtype), out, in, rows);
      CHECK(choice.warps_a_row == warps);
      CHECK(choice.shape.shared_bytes <= kSharedOfAll);
      CHECK(choice.tile_columns % kInputBlock == 0);
      CHECK(uint64_t{choice.shape.grid_y} * choice.shape.grid_z * choice.token_tiles * 8 >= rows);
      CHECK(uint64_t{choice.shape.grid_x} * choice.row_tiles * 16 * 8 / choice.warps_a_row >= out);
    }
  }
}

}  // namespace dspack::test::linear_tensor_test
