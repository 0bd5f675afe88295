#include "tests/kernels/definitions.h"
#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/numeric.h"

namespace dspack::test::rope_test {
namespace {

void check_rotation(kernels::RopePairs pairs) {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 5;
  constexpr uint32_t kHeads = 3;
  constexpr uint32_t kDim = 10;
  constexpr uint32_t kHeadStride = 17;  // rotary values behind seven others
  constexpr uint32_t kRowStride = kHeads * kHeadStride + 2;
  constexpr uint32_t kFirst = 4;
  constexpr uint32_t kStart = 7;
  std::vector<float> table;
  for (uint32_t i = 0; i < (kFirst + kRows) * kDim / 2; ++i) {
    const float angle = random.uniform(-3, 3);
    table.push_back(std::cos(angle));
    table.push_back(std::sin(angle));
  }
  const auto before = random.normals(size_t{kRows} * kRowStride);
  Lab lab(kPlainestSet);
  const kernels::Slice data = lab.put(before);
  lab.queue().rope({.data = data.at(kStart * sizeof(float)),
                    .rows = kRows,
                    .heads = kHeads,
                    .dim = kDim,
                    .head_stride = kHeadStride,
                    .row_stride = kRowStride,
                    .first_position = kFirst,
                    .cos_sin = lab.put(table),
                    .pairs = pairs});
  const bool is_halves = pairs == kernels::RopePairs::halves;
  Doubles wanted(before.begin(), before.end());
  for (uint32_t r = 0; r < kRows; ++r) {
    for (uint32_t i = 0; i < kHeads * kDim; i += 2) {
      const size_t head = r * kRowStride + kStart + i / kDim * kHeadStride;
      const size_t at = head + (is_halves ? i % kDim / 2 : i % kDim);
      const size_t other = is_halves ? at + kDim / 2 : at + 1;
      const size_t angle = (kFirst + r) * kDim + i % kDim;
      const std::complex<double> rotated =
          std::complex<double>(before[at], before[other]) * std::complex<double>(table[angle], table[angle + 1]);
      wanted[at] = rotated.real();
      wanted[other] = rotated.imag();
    }
  }
  const auto got = lab.get(data, before.size());
  const ErrorReport report = compare(got, wanted, kRowStride);
  CAPTURE(report);
  // Two products and a sum, each rounded: 2 u of the larger term, which is at most the length of the pair.
  CHECK(report.nmse < 4 * kRoundoff * kRoundoff);
  CHECK(report.not_a_number == 0);
}

TEST_CASE("rope: is a complex multiplication of interleaved pairs, and touches nothing else") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  check_rotation(kernels::RopePairs::neighbours);
}

TEST_CASE("rope: is a complex multiplication of a vector's halves, and touches nothing else") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  check_rotation(kernels::RopePairs::halves);
}

TEST_CASE("rope: one row a call and all rows at once give the same bits") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 64;
  constexpr uint32_t kHeads = 16;
  constexpr uint32_t kDim = 64;
  constexpr uint32_t kRow = kHeads * kDim;
  const auto x = random.normals(size_t{kRows} * kRow);
  const auto table = random.normals(size_t{kRows} * kDim);
  Lab together(kPlainestSet, 3);
  Lab apart(kPlainestSet, 1);
  const kernels::Slice a = together.put(x);
  const kernels::Slice b = apart.put(x);
  const kernels::Slice cos_sin = apart.put(table);
  together.queue().rope({a, kRows, kHeads, kDim, kDim, kRow, 0, together.put(table)});
  for (uint32_t r = 0; r < kRows; ++r) {
    apart.queue().rope({b.at(uint64_t{r} * kRow * 4), 1, kHeads, kDim, kDim, kRow, r, cos_sin});
  }
  CHECK(first_difference(together.get(a, x.size()), apart.get(b, x.size())) == x.size());
}

KERNEL_CASE("rope: turned back") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  const std::vector<float> x = numbers(1, 5 * 12);
  std::vector<float> cos_sin;
  for (uint32_t i = 0; i < 9 * 4; ++i) {
    cos_sin.push_back(std::cos(0.3F * static_cast<float>(i)));
    cos_sin.push_back(std::sin(0.3F * static_cast<float>(i)));
  }
  const kernels::Slice turned = lab.put(x);
  kernels::RopeArgs turn{.data = turned,
                         .rows = 5,
                         .heads = 1,
                         .dim = 8,
                         .head_stride = 12,
                         .row_stride = 12,
                         .first_position = 3,
                         .cos_sin = lab.put(cos_sin)};
  lab.queue().rope(turn);
  CHECK(nmse(lab.get(turned, x.size()), wide(x)) > 0.1);
  turn.inverse = true;
  lab.queue().rope(turn);
  CHECK(nmse(lab.get(turned, x.size()), wide(x)) <= 1e-13);
}

}  // namespace
}  // namespace dspack::test::rope_test
