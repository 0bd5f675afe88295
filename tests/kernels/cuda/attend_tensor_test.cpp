#include "tests/kernels/cuda/attend_lab.h"

namespace dspack::test::attend_tensor_test {
namespace {

using kernels::cuda::AttendChoice;

constexpr AttendChoice kTensorChoices[] = {AttendChoice::tensor_64x2, AttendChoice::tensor_64x1,
                                           AttendChoice::tensor_16x2, AttendChoice::tensor_16x1};
constexpr double kBf16Roundoff = 0x1p-8;  // 8 significant bits

AttendInput rounded(AttendInput input) {
  for (std::vector<float>* values : {&input.latent, &input.rope, &input.cache}) {
    for (float& value : *values)
      value = bf16_to_f32(f32_to_bf16(value));
  }
  return input;
}

/// Against attention on operands that are rounded as the kernel rounds them. What remains is the rounding of the
/// weights, u' = 2^-8 of each at most, and FP32: a score, a sum of n products, is wrong by at most E = (n + 2) u S,
/// where S is the sum of its products' magnitudes. That changes a weight by the factor exp(E), and the sum of the
/// weights by no more. Sums over positions, rescaled tile by tile and merged, add less than 2 u for each position.
void check_rounded(const std::vector<float>& got, const AttendInput& input, const AttendCase& c) {
  const Reference wanted = reference(rounded(input), c);
  const double positions = c.first_position + c.rows;
  Doubles bound;
  for (size_t i = 0; i < wanted.values.size(); ++i) {
    const double score_error = (c.latent + c.rope + 2.0) * kRoundoff * wanted.products[i / c.latent];
    const double weight_error = std::exp(2 * score_error) * (1 + kBf16Roundoff) - 1;
    bound.push_back((weight_error + 2 * (positions + 10) * kRoundoff) * wanted.magnitudes[i]);
  }
  const ErrorReport report = compare(got, wanted.values, c.latent);
  CAPTURE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  CHECK(beyond_bound(got, wanted.values, bound) == 0);
}

/// Against the operands as they are. Queries, keys, weights and values are each wrong by e with |e| <= u' and, as the
/// error is spread evenly, e^2 = u'^2 / 3 in the mean at most. A score is a sum of n products of about 1, times
/// 1 / sqrt(n): e of its queries and keys become as much of the weight, times the sharpness. Errors of different
/// positions are independent, as the terms of the result are. The factor 2 is for chance.
void check_operands(const std::vector<float>& got, const AttendInput& input, const AttendCase& c) {
  const ErrorReport report = compare(got, reference(input, c).values, c.latent);
  CAPTURE(report);
  const double sharpness = std::max(1.0F, c.sharpness);
  CHECK(report.nmse < 2 * (2 * sharpness * sharpness + 2) * kBf16Roundoff * kBf16Roundoff / 3);
}

void check_tensor(const AttendCase& c, AttendChoice choice, Random& random) {
  CAPTURE(c);
  CAPTURE(static_cast<int>(choice));
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  const auto got = run_attend(lab, input, c, {.rows = c.rows, .choice = choice});
  check_rounded(got, input, c);
  check_operands(got, input, c);
}

}  // namespace

TEST_CASE("cuda: tensor attention agrees with double precision within the rounding to BF16") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : kTensorChoices) {
    for (const AttendCase& c :
         {AttendCase{1, 5, 16, 16, 70, 1, Dtype::bf16}, AttendCase{3, 9, 48, 0, 63, 1, Dtype::bf16},
          AttendCase{5, 4, 144, 32, 130, 1, Dtype::bf16}, AttendCase{70, 2, 32, 16, 0, 1, Dtype::bf16}})
      check_tensor(c, choice, random);
  }
}

TEST_CASE("cuda: tensor attention of FP8 rows, decoded from memory or behind the tile before") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : kTensorChoices) {
    for (const AttendCase& c :
         {AttendCase{1, 5, 16, 16, 70, 1, Dtype::f8_e4m3}, AttendCase{3, 9, 48, 0, 63, 1, Dtype::f8_e4m3, 16},
          AttendCase{5, 4, 144, 32, 130, 1, Dtype::f8_e4m3}, AttendCase{70, 2, 32, 16, 0, 1, Dtype::f8_e4m3}})
      check_tensor(c, choice, random);
  }
}

TEST_CASE("cuda: tensor attention rounds caches of other types, and takes them unaligned") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : {AttendChoice::tensor_64x2, AttendChoice::tensor_16x1}) {
    for (const AttendCase& c :
         {AttendCase{2, 5, 48, 16, 70, 1, Dtype::f32}, AttendCase{2, 5, 48, 16, 70, 1, Dtype::f32, 4},
          AttendCase{2, 5, 48, 16, 70, 1, Dtype::f16, 2}, AttendCase{2, 5, 48, 16, 70, 1, Dtype::bf16, 2}})
      check_tensor(c, choice, random);
  }
}

TEST_CASE("cuda: tensor attention at DeepSeek-V3's sizes") {
  Random random;
  CAPTURE(random.seed());
  check_tensor({1, 128, 512, 64, 70, 1, Dtype::bf16}, AttendChoice::tensor_64x2, random);
  check_tensor({2, 16, 512, 64, 130, 3, Dtype::bf16}, AttendChoice::tensor_16x2, random);
  check_tensor({1, 128, 512, 64, 70, 1, Dtype::f8_e4m3}, AttendChoice::tensor_64x2, random);
  check_tensor({2, 16, 512, 64, 130, 3, Dtype::f8_e4m3}, AttendChoice::tensor_16x1, random);
}

TEST_CASE("cuda: tensor attention over many positions, where splits become longer") {
  Random random;
  CAPTURE(random.seed());
  // 128 splits of 64 positions end with the second row: both lengths meet in one block.
  const AttendCase c{3, 2, 16, 0, 128 * 64 - 2, 1, Dtype::bf16};
  const AttendChoice choice = AttendChoice::tensor_16x2;
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  const auto all = run_attend(lab, input, c, {.rows = c.rows, .choice = choice});
  check_rounded(all, input, c);
  // The last row alone, its position in device memory, of a cache that could be longer.
  const auto last = run_attend(
      lab, input, c, {.first = 2, .rows = 1, .capacity = 163'840, .position = Position::live, .choice = choice});
  CHECK(first_difference(last, std::span(all).last(last.size())) == last.size());
}

TEST_CASE("cuda: tensor attention of splits that are several tiles long, in every layout") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : kTensorChoices) {
    check_tensor({1, 5, 16, 16, 128 * 64 + 40, 3, Dtype::bf16}, choice, random);
    check_tensor({1, 5, 16, 16, 128 * 64 + 40, 3, Dtype::f8_e4m3}, choice, random);
  }
}

TEST_CASE("cuda: tensor attention: blocks of half the queries, where there are few, have the bits of whole ones") {
  Random random;
  CAPTURE(random.seed());
  // 128 heads are four blocks of 32 queries: 128 blocks of 32 splits for a row of 2048 positions, and 132 for the next.
  const AttendCase c{3, 128, 16, 16, 32 * 64 - 2, 1, Dtype::bf16};
  const AttendInput input = random_input(c, random);
  for (const AttendChoice choice : {AttendChoice::tensor_64x2, AttendChoice::tensor_64x1}) {
    GpuLab lab(random.seed());
    check_rows_alone(lab, input, c, choice);
    check_rounded(run_attend(lab, input, c, {.rows = c.rows, .choice = choice}), input, c);
  }
  // 33 splits of two tiles.
  check_tensor({1, 128, 16, 16, 33 * 128 - 10, 1, Dtype::bf16}, AttendChoice::tensor_64x2, random);
  check_tensor({1, 128, 16, 16, 33 * 128 - 10, 1, Dtype::f8_e4m3}, AttendChoice::tensor_64x2, random);
}

TEST_CASE("cuda: tensor attention of so many queries that no row is cut") {
  Random random;
  CAPTURE(random.seed());
  check_tensor({2, kernels::cuda::kUnsplitQueries / 2, 16, 0, 66, 1, Dtype::bf16}, AttendChoice::tensor_64x2, random);
}

TEST_CASE("cuda: tensor attention: a row's bits depend on neither its neighbours, tiles, nor who knows its position") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : {Dtype::bf16, Dtype::f8_e4m3}) {
    const AttendCase c{5, 3, 32, 16, 125, 3, dtype};
    CAPTURE(c);
    const AttendInput input = random_input(c, random);
    GpuLab lab(random.seed());
    for (const AttendChoice choice : {AttendChoice::tensor_64x2, AttendChoice::tensor_16x1})
      check_rows_alone(lab, input, c, choice);
  }
}

TEST_CASE("cuda: tensor attention: the order of threads and blocks changes no bit") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : {Dtype::bf16, Dtype::f8_e4m3}) {
    const AttendCase c{3, 5, 48, 16, 150, 2, dtype};
    CAPTURE(c);
    const AttendInput input = random_input(c, random);
    for (const AttendChoice choice : kTensorChoices) {
      CAPTURE(static_cast<int>(choice));
      GpuLab first(1);
      const auto wanted = run_attend(first, input, c, {.rows = c.rows, .choice = choice});
      for (const uint64_t seed : {2, 3, 4}) {
        GpuLab lab(seed);
        CHECK(first_difference(run_attend(lab, input, c, {.rows = c.rows, .choice = choice}), wanted) == wanted.size());
      }
    }
  }
}

TEST_CASE("cuda: tensor attention: where queries lie changes no bit") {
  Random random;
  CAPTURE(random.seed());
  // Pieces of eight values that are latent or rotary as a whole, and latents that end within one.
  for (const AttendCase& c :
       {AttendCase{3, 5, 48, 16, 150, 2, Dtype::bf16}, AttendCase{2, 5, 20, 12, 70, 2, Dtype::bf16},
        AttendCase{2, 16, 512, 64, 130, 3, Dtype::f8_e4m3}}) {
    CAPTURE(c);
    const AttendInput input = random_input(c, random);
    for (const AttendChoice choice : kTensorChoices) {
      GpuLab lab(random.seed());
      const auto odd = run_attend(lab, input, c, {.rows = c.rows, .choice = choice});
      const auto whole = run_attend(lab, input, c, {.rows = c.rows, .choice = choice, .whole_queries = true});
      CHECK(first_difference(odd, whole) == whole.size());
    }
  }
}

TEST_CASE("cuda: tensor attention: scores beyond the range of exp do no harm") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{3, 2, 16, 16, 150, 1e6F, Dtype::bf16};
  GpuLab lab(random.seed());
  for (const float value :
       run_attend(lab, random_input(c, random), c, {.rows = c.rows, .choice = AttendChoice::tensor_64x2}))
    CHECK(std::isfinite(value));
}

}  // namespace dspack::test::attend_tensor_test
