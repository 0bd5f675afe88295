#include "tests/kernels/head_case.h"
#include "tests/support/numeric.h"

namespace dspack::test::head_linear_test {
namespace {

/// x and y are laid out [rows, heads, length] with a gap of 2 behind every head of y and of 1 behind every row.
std::vector<float> run_heads(Lab& lab, const kernels::Weight& weight, const std::vector<float>& x, const HeadCase& c,
                             Direction direction) {
  const Lengths length = lengths(c, direction);
  const uint32_t head_stride = length.y + 2;
  const uint32_t row_stride = c.heads * head_stride + 1;
  const kernels::Slice y = lab.poisoned(size_t{c.rows} * row_stride);
  const kernels::HeadLinearArgs args{.weight = weight,
                                     .heads = c.heads,
                                     .head_rows = c.head_rows,
                                     .first_row = c.first_row,
                                     .rows_used = c.rows_used,
                                     .x = lab.put(x),
                                     .x_row_stride = c.heads * length.x,
                                     .x_head_stride = length.x,
                                     .y = y,
                                     .y_row_stride = row_stride,
                                     .y_head_stride = head_stride,
                                     .rows = c.rows};
  if (direction == Direction::plain) {
    lab.queue().head_linear(args);
  } else {
    lab.queue().head_linear_transposed(args);
  }
  const auto rows = dense(lab.get(y, size_t{c.rows} * row_stride), c.rows, row_stride - 1, row_stride);
  return dense(rows, size_t{c.rows} * c.heads, length.y, head_stride);
}

std::vector<Sum> reference(const Matrix& weight, const std::vector<float>& x, const HeadCase& c, Direction direction) {
  const Lengths length = lengths(c, direction);
  std::vector<Sum> y(size_t{c.rows} * c.heads * length.y);
  for (size_t rh = 0; rh < size_t{c.rows} * c.heads; ++rh) {
    const auto head = static_cast<uint32_t>(rh % c.heads);
    for (uint32_t d = 0; d < c.rows_used; ++d) {
      for (uint32_t j = 0; j < c.weight.in; ++j) {
        const double w = weight.at(head * c.head_rows + c.first_row + d, j);
        const bool plain = direction == Direction::plain;
        y[rh * length.y + (plain ? d : j)].add(w * x[rh * length.x + (plain ? j : d)]);
      }
    }
  }
  return y;
}

void check_heads(Lab& lab, const HeadCase& c, Direction direction, Random& random) {
  CAPTURE(c);
  const RandomWeight weight = random_weight(c.weight, random);
  const auto x = random.normals(size_t{c.rows} * c.heads * lengths(c, direction).x);
  const auto got = run_heads(lab, weight.put(lab), x, c, direction);
  // Plain: at most in / 16 + blocks + 4 roundings; transposed: one per row used and two per block of rows.
  const double steps = direction == Direction::plain ? c.weight.in / 16.0 + c.weight.in + 5 : 3.0 * c.rows_used;
  Doubles wanted;
  Doubles bound;
  for (const Sum& sum : reference(weight.matrix, x, c, direction)) {
    wanted.push_back(sum.value);
    bound.push_back(1.001 * steps * kRoundoff * sum.magnitude + 1e-40);
  }
  const ErrorReport report = compare(got, wanted, lengths(c, direction).y);
  CAPTURE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  CHECK(beyond_bound(got, wanted, bound) == 0);
  if (wanted.size() >= 64) CHECK(report.nmse < 200 * kRoundoff * kRoundoff);  // as for linear, 60 steps or fewer
}

std::vector<HeadCase> head_cases(Dtype dtype) {
  return {
      {{dtype, 3 * 20, 64, 0, 0}, 3, 20, 12, 8, 1},
      {{dtype, 3 * 20, 100, 128, 128}, 3, 20, 0, 12, 2},
      {{dtype, 5 * 24, 130, 7, 9}, 5, 24, 16, 8, 3},
      {{dtype, 2 * 48, 200, 32, 64}, 2, 48, 32, 16, 5},
      {{dtype, 4 * 256, 512, 128, 128}, 4, 256, 128, 128, 1},
      {{dtype, 4 * 256, 512, 128, 128}, 4, 256, 0, 128, 9},
      {{dtype, 2 * 10, 7, 1, 7}, 2, 10, 3, 1, 4},
      {{dtype, 37, 33, 5, 33}, 1, 37, 2, 35, 6},
      {{dtype, 2 * 30, 150, 11, 40}, 2, 30, 7, 20, 3},
  };
}

std::vector<HeadCase> packed_head_cases(const PackedCodes& packed) {
  return {
      {{Dtype::u8, 3 * 20, 64, 1, 16, packed}, 3, 20, 12, 8, 1},
      {{Dtype::u8, 2 * 48, 200, 1, 32, packed}, 2, 48, 32, 16, 5},
      {{Dtype::u8, 2 * 30, 151, 4, 160, packed}, 2, 30, 7, 20, 3},
      {{Dtype::u8, 2 * 256, 512, 1, 32, packed}, 2, 256, 0, 128, 9},
  };
}

KERNEL_CASE("head_linear, both ways: packed codes agree with double precision") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const PackedCodes& packed : kPackedCodes) {
    for (const HeadCase& c : packed_head_cases(packed)) {
      Lab lab(Set::kName);
      check_heads(lab, c, Direction::plain, random);
      check_heads(lab, c, Direction::transposed, random);
    }
  }
}

KERNEL_CASE("head_linear: parts of heads anywhere among the blocks agree with double precision") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : kWeightTypes) {
    for (const HeadCase& c : head_cases(dtype)) {
      Lab lab(Set::kName);
      check_heads(lab, c, Direction::plain, random);
    }
  }
}

KERNEL_CASE("head_linear_transposed: parts of heads anywhere among the blocks agree with double precision") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : kWeightTypes) {
    for (const HeadCase& c : head_cases(dtype)) {
      Lab lab(Set::kName);
      check_heads(lab, c, Direction::transposed, random);
    }
  }
}

KERNEL_CASE("head_linear: the bits depend on neither rows in the call, threads, nor instruction set") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : kWeightTypes) {
    for (const Direction direction : {Direction::plain, Direction::transposed}) {
      HeadCase c{{dtype, 6 * 56, 300, 32, 40}, 6, 56, 16, 40, 1};
      const RandomWeight weight = random_weight(c.weight, random);
      constexpr uint32_t kRows = 7;
      const size_t x_row = size_t{c.heads} * lengths(c, direction).x;
      const auto x = random.normals(kRows * x_row);
      std::vector<float> wanted;
      Lab plainest(plainest_of(Set::kName), 1);
      const kernels::Weight stored = weight.put(plainest);
      for (uint32_t r = 0; r < kRows; ++r) {
        const auto first = x.begin() + static_cast<std::ptrdiff_t>(r * x_row);
        const auto y = run_heads(plainest, stored, {first, first + static_cast<std::ptrdiff_t>(x_row)}, c, direction);
        wanted.insert(wanted.end(), y.begin(), y.end());
      }
      c.rows = kRows;
      CAPTURE(c);
      for (unsigned threads = 1; threads <= kMaxThreads; ++threads) {
        Lab lab(Set::kName, threads);
        CHECK(first_difference(run_heads(lab, weight.put(lab), x, c, direction), wanted) == wanted.size());
      }
    }
  }
}

KERNEL_CASE("head_linear_transposed: all 256 E4M3 codes decode exactly") {
  SKIP_UNLESS_SET_RUNS();
  constexpr uint32_t kIn = 256 + 7;  // whole vectors and a ragged one
  std::vector<uint8_t> codes(kIn);
  for (uint32_t j = 0; j < kIn; ++j)
    codes[j] = static_cast<uint8_t>(j + 249);  // the NaN codes lie inside and at the end
  Lab lab(Set::kName);
  const kernels::Weight weight{{kernels::Coding::f8_e4m3, 1, kIn}, {lab.put(codes)}};
  const auto y = run_heads(lab, weight, {1.0F}, {{Dtype::f8_e4m3, 1, kIn, 0, 0}, 1, 1, 0, 1, 1}, Direction::transposed);
  for (uint32_t j = 0; j < kIn; ++j) {
    const double wanted = decode_e4m3(codes[j]);
    CAPTURE(j);
    CHECK(std::isnan(y[j]) == std::isnan(wanted));
    if (!std::isnan(wanted)) CHECK(static_cast<double>(y[j]) == wanted);
  }
}

}  // namespace
}  // namespace dspack::test::head_linear_test
