#include "tests/kernels/cuda/attend_lab.h"

namespace dspack::test::attend_test {
namespace {

using kernels::cuda::AttendChoice;

void check_error(const std::vector<float>& got, const AttendInput& input, const AttendCase& c) {
  const ErrorReport report = compare(got, reference(input, c).values, c.latent);
  CAPTURE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  // As on the CPU: an error e of a score changes its weight by the factor 1 + e. Scores are sums of eight parts of up
  // to 72 terms, hence wrong by less than (72 + 8) u times their size, which is about the sharpness, and in the mean by
  // far less; weights, sums and merging add a few u of their own.
  const double relative = 60 * kRoundoff * std::max(1.0F, c.sharpness);
  CHECK(report.nmse < relative * relative);
}

void check_exact(const AttendCase& c, Random& random) {
  CAPTURE(c);
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  check_error(run_attend(lab, input, c, all_rows(c)), input, c);
}

}  // namespace

TEST_CASE("cuda: exact attention agrees with naive attention in double precision") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendCase& c :
       {AttendCase{1, 1, 16, 8, 0}, AttendCase{1, 3, 40, 6, 63}, AttendCase{5, 4, 24, 2, 62},
        AttendCase{3, 9, 33, 10, 200}, AttendCase{70, 2, 16, 4, 0}, AttendCase{2, 5, 16, 0, 10},
        AttendCase{2, 3, 64, 8, 300, 200}, AttendCase{4, 17, 7, 5, 129}, AttendCase{3, 4, 80, 16, 66}})
    check_exact(c, random);
}

TEST_CASE("cuda: exact attention at DeepSeek-V3's sizes") {
  Random random;
  CAPTURE(random.seed());
  check_exact({1, 128, 512, 64, 70, 1, Dtype::bf16}, random);
  check_exact({2, 16, 512, 64, 130, 1, Dtype::f32}, random);
  check_exact({2, 16, 512, 64, 130, 1, Dtype::f8_e4m3}, random);
}

TEST_CASE("cuda: exact attention on keys that are wider than a panel, values wider than a block") {
  Random random;
  CAPTURE(random.seed());
  check_exact({2, 3, 560, 16, 40, 1, Dtype::bf16}, random);
  check_exact({2, 3, 1100, 100, 70, 1, Dtype::f16}, random);
  check_exact({1, 2, 1031, 30, 20, 1, Dtype::f32}, random);
  check_exact({2, 3, 1104, 40, 70, 1, Dtype::f8_e4m3}, random);
  check_exact({1, 2, 1031, 30, 20, 1, Dtype::f8_e4m3}, random);
}

TEST_CASE("cuda: exact attention over many positions, where splits become longer") {
  Random random;
  CAPTURE(random.seed());
  // 128 splits of 32 positions end with the second row: both lengths meet in one block.
  const AttendCase c{3, 2, 8, 4, 128 * kernels::cuda::kExactSplitUnit - 2};
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  const auto all = run_attend(lab, input, c, all_rows(c));
  check_error(all, input, c);
  // Rows alone; the last one's position in device memory, of a cache that could be longer.
  const size_t row = size_t{c.heads} * c.latent;
  const auto second = run_attend(lab, input, c, {.first = 1, .rows = 1});
  CHECK(first_difference(second, std::span(all).subspan(row, row)) == row);
  const auto last = run_attend(lab, input, c, {.first = 2, .rows = 1, .capacity = 163'840, .position = Position::live});
  CHECK(first_difference(last, std::span(all).last(row)) == row);
}

TEST_CASE("cuda: exact attention decodes every type of cache, aligned or not") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const size_t elements : {0, 1}) {
      check_exact({2, 3, 48, 16, 70, 1, dtype, elements * bits_of(dtype) / 8}, random);
      check_exact({2, 3, 31, 6, 70, 1, dtype, elements * bits_of(dtype) / 8}, random);
    }
  }
  for (const AttendCase& c :
       {AttendCase{2, 3, 48, 16, 70, 1, Dtype::f8_e4m3, 16}, AttendCase{2, 3, 31, 6, 70, 1, Dtype::f8_e4m3, 16},
        AttendCase{2, 3, 144, 0, 70, 1, Dtype::f8_e4m3}, AttendCase{2, 3, 32, 5, 70, 1, Dtype::f8_e4m3}})
    check_exact(c, random);
}

TEST_CASE("cuda: exact attention: scores beyond the range of exp do no harm") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{3, 2, 16, 4, 150, 1e6F};
  GpuLab lab(random.seed());
  for (const float value : run_attend(lab, random_input(c, random), c, all_rows(c)))
    CHECK(std::isfinite(value));
}

TEST_CASE("cuda: exact attention: a row's bits depend on its position and query alone, whoever knows the position") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : {Dtype::f32, Dtype::f8_e4m3}) {
    const AttendCase c{7, 3, 24, 8, 124, 3, dtype};
    CAPTURE(c);
    const AttendInput input = random_input(c, random);
    GpuLab lab(random.seed());
    check_rows_alone(lab, input, c, AttendChoice::exact);
  }
}

TEST_CASE("cuda: exact attention: the order of threads and blocks changes no bit") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendCase& c : {AttendCase{3, 5, 33, 10, 150, 2}, AttendCase{1, 4, 512, 64, 65, 2, Dtype::bf16},
                              AttendCase{1, 2, 600, 20, 30, 2}, AttendCase{2, 4, 144, 16, 65, 2, Dtype::f8_e4m3}}) {
    CAPTURE(c);
    const AttendInput input = random_input(c, random);
    GpuLab first(1);
    const auto wanted = run_attend(first, input, c, all_rows(c));
    for (const uint64_t seed : {2, 3, 4}) {
      GpuLab lab(seed);
      CHECK(first_difference(run_attend(lab, input, c, all_rows(c)), wanted) == wanted.size());
    }
  }
}

}  // namespace dspack::test::attend_test
