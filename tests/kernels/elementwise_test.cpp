#include "tests/kernels/definitions.h"
#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/numeric.h"

namespace dspack::test::elementwise_test {
namespace {

using kernels::Rows;

constexpr uint32_t kGap = 3;
constexpr uint32_t kWidths[] = {1, 15, 16, 17, 64, 100, 515};

/// A [rows, cols] matrix with a poisoned gap behind each row.
kernels::Slice put_with_gaps(Lab& lab, const std::vector<float>& values, uint32_t rows, uint32_t cols) {
  std::vector<float> stored(size_t{rows} * (cols + kGap), poison());
  for (size_t i = 0; i < values.size(); ++i)
    stored[i / cols * (cols + kGap) + i % cols] = values[i];
  return lab.put(stored);
}
std::vector<float> get_with_gaps(Lab& lab, kernels::Slice place, uint32_t rows, uint32_t cols) {
  return dense(lab.get(place, size_t{rows} * (cols + kGap)), rows, cols, cols + kGap);
}

KERNEL_CASE("rms_norm: agrees with double precision, also in place") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : kWidths) {
    for (const uint32_t rows : {1U, 5U}) {
      CAPTURE(cols);
      Lab lab(Set::kName);
      const auto x = random.normals(size_t{rows} * cols);
      const auto gain = random.normals(cols);
      Doubles wanted;
      for (size_t i = 0; i < x.size(); ++i) {
        double squares = 0;
        for (size_t c = 0; c < cols; ++c)
          squares += std::pow(x[i / cols * cols + c], 2);
        wanted.push_back(x[i] / std::sqrt(squares / cols + 1e-6) * gain[i % cols]);
      }
      const Rows in{put_with_gaps(lab, x, rows, cols), rows, cols, cols + kGap};
      const Rows out{put_with_gaps(lab, {}, rows, cols), rows, cols, cols + kGap};
      lab.queue().rms_norm(in, lab.put(gain), 1e-6F, out);
      const auto got = get_with_gaps(lab, out.data, rows, cols);
      const ErrorReport report = compare(got, wanted, cols);
      CAPTURE(report);
      CHECK(report.not_a_number == 0);
      // Half the relative error of a sum of positive terms (cols / 16 + 5 roundings), and six more operations.
      const double relative = (cols / 32.0 + 9) * kRoundoff;
      CHECK(report.nmse < relative * relative);
      lab.queue().rms_norm(in, lab.put(gain), 1e-6F, in);
      CHECK(first_difference(get_with_gaps(lab, in.data, rows, cols), got) == got.size());
    }
  }
}

KERNEL_CASE("layer_norm: agrees with double precision, far from zero too, also in place") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : kWidths) {
    for (const uint32_t rows : {1U, 5U, 9U}) {
      CAPTURE(cols);
      Lab lab(Set::kName);
      auto x = random.normals(size_t{rows} * cols);
      for (float& value : x)
        value += 1000;  // squares in single precision would leave nothing of the variance
      const auto gain = random.normals(cols);
      const auto bias = random.normals(cols);
      Doubles wanted;
      Doubles bound;
      for (size_t i = 0; i < x.size(); ++i) {
        const float* row = x.data() + i / cols * cols;
        double mean = 0;
        for (size_t c = 0; c < cols; ++c)
          mean += static_cast<double>(row[c]) / cols;
        double variance = 0;
        for (size_t c = 0; c < cols; ++c)
          variance += std::pow(row[c] - mean, 2) / cols;
        const double scaled = (x[i] - mean) / std::sqrt(variance + 1e-6) * gain[i % cols];
        wanted.push_back(scaled + bias[i % cols]);
        // Rounded to FP32: the quotient, its product, the sum; sums in double precision add 1000 times 2^-50 or so.
        bound.push_back((3 * std::abs(scaled) + std::abs(wanted.back())) * kRoundoff + 1e-9);
      }
      const Rows in{put_with_gaps(lab, x, rows, cols), rows, cols, cols + kGap};
      const Rows out{put_with_gaps(lab, {}, rows, cols), rows, cols, cols + kGap};
      lab.queue().layer_norm(in, lab.put(gain), lab.put(bias), 1e-6F, out);
      const auto got = get_with_gaps(lab, out.data, rows, cols);
      CHECK(beyond_bound(got, wanted, bound) == 0);
      lab.queue().layer_norm(in, lab.put(gain), lab.put(bias), 1e-6F, in);
      CHECK(first_difference(get_with_gaps(lab, in.data, rows, cols), got) == got.size());
    }
  }
}

KERNEL_CASE("silu_multiply: within a few units in the last place, over the whole range") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : kWidths) {
    Lab lab(Set::kName);
    constexpr uint32_t kRows = 9;
    auto gate = random.normals(size_t{kRows} * cols);
    for (float& value : gate)
      value *= random.below(2) == 0 ? 1.0F : 35.0F;
    gate[0] = 0;
    const auto up = random.normals(gate.size());
    const Rows to{put_with_gaps(lab, gate, kRows, cols), kRows, cols, cols + kGap};
    lab.queue().silu_multiply(to, {put_with_gaps(lab, up, kRows, cols), kRows, cols, cols + kGap});
    const auto got = get_with_gaps(lab, to.data, kRows, cols);
    for (size_t i = 0; i < got.size(); ++i) {
      const double wanted = silu(gate[i]) * up[i];
      CAPTURE(gate[i]);
      CAPTURE(up[i]);
      // exp is wrong by at most 1.01 units (2.02 u, since a unit is at most 2 u); sum, quotient and product add u each.
      // Below the normal range (1e-38) the unit is an absolute one, and exp(-gate) overflows, which makes 0 of a result
      // smaller than 1e-36.
      CHECK(std::abs(got[i] - wanted) <= 6 * kRoundoff * std::abs(wanted) + 1e-36);
    }
  }
}

KERNEL_CASE("silu_multiply: infinities, NaN and large arguments") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> gate{inf, std::nanf(""), 1e30F, -1e30F, -200.0F, 88.0F, 200.0F};
  const kernels::Slice to = lab.put(gate);
  lab.queue().silu_multiply({to, 1, 7, 7}, {lab.put(std::vector<float>(7, 1.0F)), 1, 7, 7});
  const auto got = lab.get(to, 7);
  CHECK(got[0] == inf);
  CHECK(std::isnan(got[1]));
  CHECK(got[2] == 1e30F);
  CHECK(got[3] == 0);
  CHECK(got[4] == 0);
  CHECK(got[5] == 88.0F);
  CHECK(got[6] == 200.0F);
}

KERNEL_CASE("add: is the sum, rounded once") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : kWidths) {
    Lab lab(Set::kName);
    const auto a = random.normals(size_t{4} * cols);
    const auto b = random.normals(size_t{4} * cols);
    const Rows to{put_with_gaps(lab, a, 4, cols), 4, cols, cols + kGap};
    lab.queue().add(to, {put_with_gaps(lab, b, 4, cols), 4, cols, cols + kGap});
    const auto got = get_with_gaps(lab, to.data, 4, cols);
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == a[i] + b[i]);
  }
}

KERNEL_CASE("combine: sums the slots of a row in their order") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t top_k : {1U, 2U, 8U}) {
    constexpr uint32_t kRows = 5;
    constexpr uint32_t kCols = 37;
    Lab lab(Set::kName);
    const auto parts = random.normals(size_t{kRows} * top_k * kCols);
    const auto weights = random.normals(size_t{kRows} * top_k);
    const Rows y{put_with_gaps(lab, {}, kRows, kCols), kRows, kCols, kCols + kGap};
    lab.queue().combine(y, {put_with_gaps(lab, parts, kRows * top_k, kCols), kRows * top_k, kCols, kCols + kGap},
                        lab.put(weights), top_k);
    const auto got = get_with_gaps(lab, y.data, kRows, kCols);
    for (size_t i = 0; i < got.size(); ++i) {
      float wanted = 0;
      for (size_t slot = 0; slot < top_k; ++slot) {
        const size_t part = i / kCols * top_k + slot;
        wanted = std::fma(weights[part], parts[part * kCols + i % kCols], wanted);
      }
      CHECK(got[i] == wanted);
    }
  }
}

/// All elementwise operations, one after another, on the same numbers.
std::vector<float> run_all(Lab& lab, const std::vector<float>& x, const std::vector<float>& other, uint32_t rows,
                           uint32_t cols) {
  const Rows a{lab.put(x), rows, cols, cols};
  const Rows b{lab.put(other), rows, cols, cols};
  lab.queue().rms_norm(a, lab.put(std::vector<float>(other.begin(), other.begin() + cols)), 1e-6F, a);
  lab.queue().silu_multiply(a, b);
  lab.queue().add(a, b);
  return lab.get(a.data, x.size());
}

KERNEL_CASE("elementwise: the bits depend on neither threads nor instruction set") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 40;
  constexpr uint32_t kCols = 4099;
  const auto x = random.normals(size_t{kRows} * kCols);
  const auto other = random.normals(x.size());
  Lab plainest(plainest_of(Set::kName), 1);
  const auto wanted = run_all(plainest, x, other, kRows, kCols);
  for (unsigned threads = 1; threads <= kMaxThreads; ++threads) {
    Lab lab(Set::kName, threads);
    CHECK(first_difference(run_all(lab, x, other, kRows, kCols), wanted) == wanted.size());
  }
}

KERNEL_CASE("silu_multiply: gates and what they are multiplied with are limited; NaN stays") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate = {3, 12, -50, 9.5F, nan, 1, 100};
  const std::vector<float> up = {-20, 5, 20, 10.5F, 1, nan, -100};
  const kernels::Slice to = lab.put(gate);
  lab.queue().silu_multiply({to, 1, 7, 7}, {lab.put(up), 1, 7, 7}, 10);
  const std::vector<float> got = lab.get(to, gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(gate[i]) || std::isnan(up[i])) {
      CHECK(std::isnan(got[i]));
      continue;
    }
    const double limited = std::min<double>(gate[i], 10);
    CHECK(got[i] == doctest::Approx(limited * sigmoid(limited) * std::clamp<double>(up[i], -10, 10)).epsilon(1e-5));
  }
}

KERNEL_CASE("rms_norm: without a gain as with ones") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  for (const uint32_t cols : {12U, 13U, 9000U}) {
    CAPTURE(cols);
    const std::vector<float> x = numbers(1, size_t{5} * cols);
    const kernels::Slice with = lab.put(x), without = lab.put(x);
    lab.queue().rms_norm({with, 5, cols, cols}, lab.put(std::vector<float>(cols, 1.0F)), 1e-6F, {with, 5, cols, cols});
    lab.queue().rms_norm({without, 5, cols, cols}, {}, 1e-6F, {without, 5, cols, cols});
    CHECK(lab.get(with, x.size()) == lab.get(without, x.size()));
  }
}

}  // namespace
}  // namespace dspack::test::elementwise_test
