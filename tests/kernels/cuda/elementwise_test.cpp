#include "kernels/cuda/tokens/elementwise.h"

#include <algorithm>

#include "kernels/cpu/rows.h"
#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/cache_rows.h"
#include "tests/support/numeric.h"

namespace dspack::test::elementwise_test {
namespace {

namespace cuda = kernels::cuda;

constexpr uint32_t kGap = 3;
constexpr uint32_t kWidths[] = {1, 31, 33, 100, 515};

/// A [rows, cols] matrix with a poisoned gap behind each row.
float* put_with_gaps(GpuLab& lab, const std::vector<float>& values, uint32_t rows, uint32_t cols) {
  std::vector<float> stored(size_t{rows} * (cols + kGap), poison());
  for (size_t i = 0; i < values.size(); ++i)
    stored[i / cols * (cols + kGap) + i % cols] = values[i];
  return lab.put(stored, sizeof(float));
}
std::vector<float> get_with_gaps(GpuLab& lab, const float* place, uint32_t rows, uint32_t cols) {
  return dense(lab.get(place, size_t{rows} * (cols + kGap)), rows, cols, cols + kGap);
}

std::vector<float> norm(const std::vector<float>& x, const std::vector<float>& gain, uint32_t rows, uint32_t cols,
                        bool in_place, uint64_t seed) {
  GpuLab lab(seed);
  float* from = put_with_gaps(lab, x, rows, cols);
  float* to = in_place ? from : put_with_gaps(lab, {}, rows, cols);
  cuda::run_rms_norm(lab.stream(), {.x = {from, cols + kGap},
                                    .y = {to, cols + kGap},
                                    .gain = lab.put(gain),
                                    .epsilon = 1e-6F,
                                    .rows = rows,
                                    .cols = cols});
  return get_with_gaps(lab, to, rows, cols);
}

template <class Operation>
std::vector<float> pair(const std::vector<float>& a, const std::vector<float>& b, uint32_t cols, Operation operation) {
  GpuLab lab(0);
  const auto rows = static_cast<uint32_t>(a.size() / cols);
  float* to = put_with_gaps(lab, a, rows, cols);
  operation(lab.stream(), cuda::RowPairTask{.to = {to, cols + kGap},
                                            .from = {put_with_gaps(lab, b, rows, cols), cols + kGap},
                                            .rows = rows,
                                            .cols = cols});
  return get_with_gaps(lab, to, rows, cols);
}

}  // namespace

TEST_CASE("cuda: rms_norm agrees with double precision, in place, alone and in any order of threads") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : {1U, 31U, 33U, 515U, 1536U, 7168U}) {
    CAPTURE(cols);
    constexpr uint32_t kRows = 3;
    const auto x = random.normals(size_t{kRows} * cols);
    const auto gain = random.normals(cols);
    const auto got = norm(x, gain, kRows, cols, false, 1);
    // Roundings of the sum of squares (a thread's, then of as many threads as have values), halved by the root; mean,
    // epsilon, root, quotient and two products.
    const double fours = std::ceil(cols / 4.0);
    const double threads = std::min<double>(fours, cuda::choose_norm_launch(kRows, cols).threads);
    const double roundings = std::min<double>(cols, 4 * std::ceil(fours / threads)) + std::ceil(std::log2(threads));
    const double relative = (roundings / 2 + 6) * kRoundoff;
    for (size_t row = 0; row < kRows; ++row) {
      double squares = 0;
      for (size_t c = 0; c < cols; ++c)
        squares += std::pow(x[row * cols + c], 2);
      for (size_t c = 0; c < cols; ++c) {
        const size_t i = row * cols + c;
        const double wanted = x[i] / std::sqrt(squares / cols + 1e-6) * gain[c];
        if (!(std::abs(got[i] - wanted) <= 1.001 * relative * std::abs(wanted))) FAIL_CHECK("at " << i);
      }
    }
    CHECK(norm(x, gain, kRows, cols, true, 2) == got);
    const std::vector<float> last(x.end() - cols, x.end());
    CHECK(norm(last, gain, 1, cols, false, 3) == std::vector<float>(got.end() - cols, got.end()));
  }
}

TEST_CASE("cuda: silu_multiply, over the whole range") {
  const auto silu_multiply = [](gpu::Stream& stream, const cuda::RowPairTask& task) {
    cuda::run_silu_multiply(stream, task, kernels::kNoLimit);
  };
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : kWidths) {
    auto gate = random.normals(size_t{5} * cols);
    for (float& value : gate)
      value *= random.below(2) == 0 ? 1.0F : 35.0F;
    const auto up = random.normals(gate.size());
    const auto got = pair(gate, up, cols, silu_multiply);
    for (size_t i = 0; i < got.size(); ++i) {
      const double wanted = silu(gate[i]) * up[i];
      // exp is wrong by at most 2 units (4 u); sum, quotient and product add u each. Below the normal range the unit is
      // an absolute one, and where exp overflows the result is zero.
      CHECK(std::abs(got[i] - wanted) <= 7.1 * kRoundoff * std::abs(wanted) + 1e-36);
    }
  }
  const float inf = std::numeric_limits<float>::infinity();
  const auto got =
      pair({inf, std::nanf(""), 1e30F, -1e30F, -200.0F, 200.0F}, std::vector<float>(6, 1.0F), 6, silu_multiply);
  CHECK(got[0] == inf);
  CHECK(std::isnan(got[1]));
  CHECK(got[2] == 1e30F);
  CHECK(got[3] == 0);
  CHECK(got[4] == 0);
  CHECK(got[5] == 200.0F);
}

TEST_CASE("cuda: add is the sum, rounded once; more rows than a grid has blocks") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : kWidths) {
    const auto a = random.normals(size_t{4} * cols);
    const auto b = random.normals(size_t{4} * cols);
    const auto got = pair(a, b, cols, cuda::run_add);
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == a[i] + b[i]);
  }
  const std::vector<float> ones(66'000, 1.0F);
  CHECK(pair(ones, ones, 1, cuda::run_add) == std::vector<float>(ones.size(), 2.0F));
}

TEST_CASE("cuda: the weighted sum takes the slots of a row in their order") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t top_k : {1U, 2U, 8U}) {
    constexpr uint32_t kRows = 5;
    constexpr uint32_t kCols = 37;
    GpuLab lab(0);
    const auto parts = random.normals(size_t{kRows} * top_k * kCols);
    const auto weights = random.normals(size_t{kRows} * top_k);
    float* y = put_with_gaps(lab, {}, kRows, kCols);
    cuda::run_weighted_sum(lab.stream(), {.y = {y, kCols + kGap},
                                          .parts = {put_with_gaps(lab, parts, kRows * top_k, kCols), kCols + kGap},
                                          .weights = lab.put(weights),
                                          .rows = kRows,
                                          .cols = kCols,
                                          .top_k = top_k});
    const auto got = get_with_gaps(lab, y, kRows, kCols);
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

TEST_CASE("cuda: rotation is the CPU's, bit for bit, at fixed and live positions") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t live : {0U, 5U}) {
    constexpr uint32_t kRows = 3, kHeads = 5, kDim = 6, kHeadStride = 9, kRowStride = 50, kPositions = 12, kFirst = 2;
    const auto x = random.normals(size_t{kRows} * kRowStride);
    const auto table = random.normals(size_t{kPositions} * kDim);
    GpuLab lab(0);
    float* data = lab.put(x, sizeof(float));
    cuda::run_rotate(lab.stream(), {.data = data,
                                    .rows = kRows,
                                    .heads = kHeads,
                                    .dim = kDim,
                                    .head_stride = kHeadStride,
                                    .row_stride = kRowStride,
                                    .first_position = kFirst,
                                    .cos_sin = lab.put(table),
                                    .live = live == 0 ? nullptr : lab.put(std::vector<uint32_t>{live})});
    const auto got = lab.get(data, x.size());
    auto wanted = x;
    kernels::rotate({.data = {},
                     .rows = kRows,
                     .heads = kHeads,
                     .dim = kDim,
                     .head_stride = kHeadStride,
                     .row_stride = kRowStride,
                     .first_position = kFirst + live,
                     .cos_sin = {}},
                    wanted.data(), table.data());
    CHECK(got == wanted);
  }
}

TEST_CASE("cuda: rows are stored as on the CPU, at fixed and live positions") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const uint32_t live : {0U, 4U}) {
      constexpr uint32_t kRows = 3, kCols = 35, kRoom = 8;
      const size_t bytes = bits_of(dtype) / 8;
      auto values = random.normals(size_t{kRows} * kCols);
      values[3] = 1e-41F;
      values[4] = 1e30F;
      values[5] = std::bit_cast<float>(0x3f808000U);  // between two of BF16
      values[6] = std::bit_cast<float>(0x3f801000U);  // between two of F16
      values[7] = -std::numeric_limits<float>::infinity();
      values[8] = std::nanf("");
      GpuLab lab(0);
      auto* stored = lab.put(std::vector<uint8_t>(kRoom * kCols * bytes, 0xaa));
      cuda::run_store_rows(lab.stream(), {.to = stored,
                                          .dtype = dtype,
                                          .from = {put_with_gaps(lab, values, kRows, kCols), kCols + kGap},
                                          .rows = kRows,
                                          .cols = kCols,
                                          .live = live == 0 ? nullptr : lab.put(std::vector<uint32_t>{live})});
      const auto all = lab.get(stored, kRoom * kCols * bytes);
      for (size_t i = 0; i < all.size(); ++i) {
        if (i / (kCols * bytes) < live || i / (kCols * bytes) >= live + kRows) CHECK(all[i] == 0xaa);
      }
      const auto got = decoded_rows(std::span(all).subspan(live * kCols * bytes, kRows * kCols * bytes), dtype);
      for (size_t i = 0; i < got.size(); ++i) {
        const float wanted = dtype == Dtype::f32    ? values[i]
                             : dtype == Dtype::bf16 ? bf16_to_f32(f32_to_bf16(values[i]))
                             : i == 4               ? kLargestHalf
                                                    : f16_to_f32(f32_to_f16(values[i]));
        CHECK(std::isnan(got[i]) == std::isnan(wanted));
        if (!std::isnan(wanted)) CHECK(std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(wanted));
      }
    }
  }
}

TEST_CASE("cuda: rows are gathered and scattered by an index on the device") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 7, kCols = 300;
  const auto x = random.normals(size_t{kRows} * kCols);
  const std::vector<uint32_t> index{6, 2, 0, 5};
  GpuLab lab(0);
  const float* from = put_with_gaps(lab, x, kRows, kCols);
  float* gathered = put_with_gaps(lab, {}, 4, kCols);
  float* scattered = put_with_gaps(lab, std::vector<float>(x.size(), -1.0F), kRows, kCols);
  cuda::MoveRowsTask task{
      .to = {gathered, kCols + kGap}, .from = {from, kCols + kGap}, .index = lab.put(index), .rows = 4, .cols = kCols};
  cuda::run_gather_rows(lab.stream(), task);
  task.to.data = scattered;
  task.from.data = gathered;
  cuda::run_scatter_rows(lab.stream(), task);
  const auto picked = get_with_gaps(lab, gathered, 4, kCols);
  const auto back = get_with_gaps(lab, scattered, kRows, kCols);
  for (size_t i = 0; i < picked.size(); ++i)
    CHECK(picked[i] == x[index[i / kCols] * kCols + i % kCols]);
  for (size_t i = 0; i < back.size(); ++i) {
    const bool was_moved = std::ranges::find(index, i / kCols) != index.end();
    CHECK(back[i] == (was_moved ? x[i] : -1.0F));
  }
}

TEST_CASE("cuda: no rows is no launch") {
  GpuLab lab(0);
  const uint64_t before = gpu::emulator_counts().launches;
  cuda::run_add(lab.stream(), {});
  cuda::run_rms_norm(lab.stream(), {});
  cuda::run_rotate(lab.stream(), {});
  cuda::run_gather_rows(lab.stream(), {});
  lab.stream().synchronize();
  CHECK(gpu::emulator_counts().launches == before);
}

}  // namespace dspack::test::elementwise_test
