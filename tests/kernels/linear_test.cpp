#include <algorithm>

#include "tests/kernels/weights.h"
#include "tests/support/numeric.h"

namespace dspack::test::linear_test {
namespace {

using kernels::Rows;

/// One call: rows of x and the gaps behind the rows of x and y.
struct LinearCase {
  WeightCase weight;
  uint32_t rows = 1;
  uint32_t x_gap = 0;
  uint32_t y_gap = 0;
};

std::ostream& operator<<(std::ostream& out, const LinearCase& c) {
  return out << c.weight << ", " << c.rows << " rows, gaps " << c.x_gap << " and " << c.y_gap;
}

std::vector<float> run_linear(Lab& lab, const kernels::Weight& weight, const std::vector<float>& x,
                              const LinearCase& c) {
  const uint32_t x_stride = weight.in + c.x_gap;
  const uint32_t y_stride = weight.out + c.y_gap;
  const kernels::Slice y = lab.poisoned(size_t{c.rows} * y_stride);
  lab.queue().linear(weight, Rows{lab.put(x), c.rows, weight.in, x_stride}, Rows{y, c.rows, weight.out, y_stride});
  return dense(lab.get(y, size_t{c.rows} * y_stride), c.rows, weight.out, y_stride);
}

/// See kernel_sets.h.
double steps(const WeightCase& weight) {
  const uint64_t block = weight.block_out == 0 ? weight.in : std::min(weight.block_in, weight.in);
  return dot_steps(bits_of(weight), block, weight.in);
}

void check_against_reference(Lab& lab, const LinearCase& c, Random& random) {
  CAPTURE(c);
  const RandomWeight weight = random_weight(c.weight, random);
  const auto x = random.normals(size_t{c.rows} * (c.weight.in + c.x_gap));
  const auto got = run_linear(lab, weight.put(lab), x, c);
  Doubles wanted;
  Doubles bound;
  // |error| <= n u / (1 - n u) * sum of |terms| for n roundings (Higham, Accuracy and Stability, 3.1); 1.001 covers the
  // denominator, the last term products that fall below the normal range.
  for (const Sum& sum : linear(weight.matrix, x, c.rows, c.weight.in + c.x_gap)) {
    wanted.push_back(sum.value);
    bound.push_back(1.001 * steps(c.weight) * kRoundoff * sum.magnitude + 1e-40);
  }
  const ErrorReport report = compare(got, wanted, c.weight.out);
  CAPTURE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  CHECK(beyond_bound(got, wanted, bound) == 0);
  // Roundings are independent with variance u^2 / 3 or less, each relative to a partial sum; with terms of random sign
  // these are smaller than the result on average. Three times that, and room for the few outputs of small cases.
  if (wanted.size() >= 64) CHECK(report.nmse < 3 * steps(c.weight) * kRoundoff * kRoundoff);
}

std::vector<WeightCase> awkward_shapes(Dtype dtype) {
  return {
      {dtype, 1, 1, 0, 0},         {dtype, 5, 15, 0, 0},       {dtype, 4, 16, 0, 0},      {dtype, 9, 131, 0, 0},
      {dtype, 130, 257, 128, 128}, {dtype, 33, 300, 128, 128}, {dtype, 7, 100, 3, 7},     {dtype, 6, 70, 1, 70},
      {dtype, 5, 90, 5, 90},       {dtype, 8, 600, 2, 300},    {dtype, 3, 40, 100, 1000}, {dtype, 10, 64, 4, 1},
      {dtype, 70, 512, 64, 17},    {dtype, 1, 1023, 1, 512},
  };
}

/// Shapes of packed codes: blocks of 16 columns and more, or whole rows.
std::vector<WeightCase> packed_shapes(const PackedCodes& packed) {
  std::vector<WeightCase> shapes;
  for (const auto& [out, in, block_out, block_in] : std::initializer_list<std::array<uint32_t, 4>>{{1, 1, 0, 0},
                                                                                                   {5, 15, 1, 15},
                                                                                                   {4, 16, 1, 16},
                                                                                                   {9, 131, 1, 16},
                                                                                                   {33, 300, 1, 32},
                                                                                                   {7, 100, 1, 100},
                                                                                                   {6, 77, 6, 128},
                                                                                                   {130, 257, 1, 128},
                                                                                                   {8, 2400, 1, 32},
                                                                                                   {3, 1408, 1, 16},
                                                                                                   {37, 1024, 1, 128},
                                                                                                   {21, 640, 1, 64},
                                                                                                   {10, 64, 4, 48}}) {
    // Zero points belong to scales.
    if (block_out == 0 && kernels::facts_of(packed.coding).has_zeros) continue;
    shapes.push_back({Dtype::u8, out, in, block_out, block_in, packed});
  }
  return shapes;
}

KERNEL_CASE("linear: packed codes and every way to store their scales agree with double precision") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const PackedCodes& packed : kPackedCodes) {
    for (const WeightCase& shape : packed_shapes(packed)) {
      Lab lab(Set::kName);
      for (const uint32_t rows : {1U, 2U, 3U, 4U, 7U, 13U, 35U})
        check_against_reference(lab, {shape, rows, random.below(3), random.below(3)}, random);
    }
  }
}

KERNEL_CASE("linear: every type, awkward blocks and ragged ends agree with double precision") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : kWeightTypes) {
    for (const WeightCase& shape : awkward_shapes(dtype)) {
      Lab lab(Set::kName);
      for (const uint32_t rows : {1U, 2U, 3U, 4U, 7U, 12U, 13U, 35U}) {
        check_against_reference(lab, {shape, rows, random.below(3), random.below(3)}, random);
      }
    }
  }
}

KERNEL_CASE("linear: random shapes agree with double precision") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (int i = 0; i < 60; ++i) {
    Lab lab(Set::kName, random.between(1, 3));
    const uint32_t out = random.between(1, 90);
    const uint32_t in = random.between(1, 400);
    const bool scaled = random.below(4) != 0;
    const WeightCase shape{kWeightTypes[random.below(4)], out, in, scaled ? random.between(1, out + 3) : 0,
                           scaled ? random.between(1, in + 3) : 0};
    check_against_reference(lab, {shape, random.between(1, 9), random.below(2), random.below(2)}, random);
  }
}

KERNEL_CASE("linear: DeepSeek-V3's kv_a_proj, whose last block of rows is ragged") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  check_against_reference(lab, {{Dtype::f8_e4m3, 576, 7168, 128, 128}, 1, 0, 0}, random);
}

KERNEL_CASE("linear: no rows is no work") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  Lab lab(Set::kName);
  const RandomWeight weight = random_weight({Dtype::f8_e4m3, 4, 8, 128, 128}, random);
  CHECK(run_linear(lab, weight.put(lab), {}, {weight.shape, 0, 0, 0}).empty());
}

/// The plainest kernels, one row a call, one thread: what all else must equal.
std::vector<float> row_by_row(const std::string& set, const RandomWeight& weight, const std::vector<float>& x,
                              uint32_t rows) {
  Lab lab(plainest_of(set), 1);
  const kernels::Weight stored = weight.put(lab);
  std::vector<float> all;
  for (uint32_t r = 0; r < rows; ++r) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(size_t{r} * weight.shape.in);
    const auto y = run_linear(lab, stored, {first, first + weight.shape.in}, {weight.shape, 1, 0, 0});
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

/// The bits of `shape` do not depend on rows in the call and threads, and are those of the plainest set.
template <class Set>
void check_same_bits(const WeightCase& shape, Random& random) {
  CAPTURE(shape);
  const RandomWeight weight = random_weight(shape, random);
  constexpr uint32_t kRows = kRowCounts[std::size(kRowCounts) - 1];
  const auto x = random.normals(size_t{kRows} * shape.in);
  const auto wanted = row_by_row(Set::kName, weight, x, kRows);
  for (unsigned threads = 1; threads <= kMaxThreads; ++threads) {
    Lab lab(Set::kName, threads);
    const kernels::Weight stored = weight.put(lab);
    for (const uint32_t rows : kRowCounts) {
      CAPTURE(threads);
      CAPTURE(rows);
      const auto used = static_cast<std::ptrdiff_t>(size_t{rows} * shape.in);
      const auto got = run_linear(lab, stored, {x.begin(), x.begin() + used}, {shape, rows, 0, 0});
      const std::vector<float> part(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(got.size()));
      CHECK(first_difference(got, part) == size_t{rows} * shape.out);
    }
  }
}

KERNEL_CASE("linear: the bits depend on neither rows in the call, threads, nor instruction set") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : kWeightTypes) {
    for (const WeightCase& shape : {WeightCase{dtype, 203, 645, 128, 128}, WeightCase{dtype, 203, 645, 50, 300},
                                    WeightCase{dtype, 203, 645, 0, 0}})
      check_same_bits<Set>(shape, random);
  }
  for (const PackedCodes& packed : kPackedCodes) {
    for (const WeightCase& shape :
         {WeightCase{Dtype::u8, 203, 645, 1, 32, packed}, WeightCase{Dtype::u8, 50, 2100, 1, 16, packed},
          WeightCase{Dtype::u8, 70, 2176, 1, 128, packed}, WeightCase{Dtype::u8, 70, 2176, 1, 32, packed}})
      check_same_bits<Set>(shape, random);
  }
}

/// The first half of a gated MLP, at once and step by step.
template <class Set>
void check_gated(const WeightCase& gate_shape, const WeightCase& up_shape, uint32_t rows, Random& random) {
  CAPTURE(gate_shape);
  CAPTURE(up_shape);
  CAPTURE(rows);
  const RandomWeight gate = random_weight(gate_shape, random);
  const RandomWeight up = random_weight(up_shape, random);
  const uint32_t out = gate_shape.out;
  const auto x = random.normals(size_t{rows} * gate_shape.in);
  for (const unsigned threads : {1U, 3U}) {
    Lab lab(Set::kName, threads);
    const Rows input{lab.put(x), rows, gate_shape.in, gate_shape.in};
    const auto place = [&] { return Rows{lab.poisoned(size_t{rows} * (out + 3)), rows, out, out + 3}; };
    const Rows y = place(), scratch = place(), wanted = place(), other = place();
    const kernels::Weight g = gate.put(lab), u = up.put(lab);
    lab.queue().gated_linear(g, u, input, y, scratch);
    lab.queue().linear(g, input, wanted);
    lab.queue().linear(u, input, other);
    lab.queue().silu_multiply(wanted, other);
    const auto values = [&](const Rows& all) {
      return dense(lab.get(all.data, size_t{rows} * (out + 3)), rows, out, out + 3);
    };
    CHECK(first_difference(values(y), values(wanted)) == size_t{rows} * out);
  }
}

KERNEL_CASE("gated_linear: the bits of two products and silu_multiply") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  const WeightCase fp8{Dtype::f8_e4m3, 203, 645, 128, 128};
  for (const uint32_t rows : {1U, 4U, 17U, 70U}) {
    check_gated<Set>(fp8, fp8, rows, random);
    check_gated<Set>({Dtype::bf16, 203, 645, 0, 0}, fp8, rows, random);
  }
}

/// Row o of the weight holds code o in column `column` and zeros elsewhere; x picks that column.
void check_all_codes(Lab& lab, uint32_t in, uint32_t column, uint32_t rows) {
  std::vector<uint8_t> codes(size_t{256} * in, 0);
  for (uint32_t code = 0; code < 256; ++code)
    codes[size_t{code} * in + column] = static_cast<uint8_t>(code);
  std::vector<float> x(size_t{rows} * in, 0.0F);
  for (uint32_t r = 0; r < rows; ++r)
    x[size_t{r} * in + column] = 1.0F;
  const kernels::Weight weight{{kernels::Coding::f8_e4m3, 256, in}, {lab.put(codes)}};
  const auto y = run_linear(lab, weight, x, {{Dtype::f8_e4m3, 256, in, 0, 0}, rows, 0, 0});
  for (uint32_t i = 0; i < rows * 256; ++i) {
    const double wanted = decode_e4m3(static_cast<uint8_t>(i % 256));
    CAPTURE(i);
    CHECK(std::isnan(y[i]) == std::isnan(wanted));
    if (!std::isnan(wanted)) CHECK(static_cast<double>(y[i]) == wanted);
  }
}

KERNEL_CASE("linear: all 256 E4M3 codes decode exactly, in the main loop, single vectors and tails") {
  SKIP_UNLESS_SET_RUNS();
  constexpr uint32_t kIn = 64 + 16 + 5;
  for (const uint32_t column : {0U, 13U, 17U, 45U, 63U, 64U, 79U, 80U, 84U}) {
    for (const uint32_t rows : {1U, 2U, 5U, 14U}) {
      Lab lab(Set::kName);
      CAPTURE(column);
      CAPTURE(rows);
      check_all_codes(lab, kIn, column, rows);
    }
  }
}

}  // namespace
}  // namespace dspack::test::linear_test
