#include "kernels/cuda/linear/head_linear.h"

#include <span>
#include <vector>

#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/head_case.h"
#include "tests/support/numeric.h"

namespace dspack::test::head_linear_test {
namespace {

kernels::cuda::Matrix put(GpuLab& lab, const RandomWeight& weight, size_t offset_bytes = 0) {
  kernels::cuda::Matrix matrix{form_of(weight.shape), {lab.put(weight.bytes, offset_bytes)}};
  if (!weight.scales.empty()) matrix.planes[kernels::kScales] = lab.put(weight.scales);
  return matrix;
}

/// x and y are laid out [rows, heads, length] with a gap of 2 behind every head of y and of 1 behind every row.
std::vector<float> run_heads(GpuLab& lab, const kernels::cuda::Matrix& matrix, std::span<const float> x,
                             const HeadCase& c, Direction direction) {
  const Lengths length = lengths(c, direction);
  const uint32_t head_stride = length.y + 2;
  const uint32_t row_stride = c.heads * head_stride + 1;
  float* y = lab.poisoned(size_t{c.rows} * row_stride, sizeof(float));
  const kernels::cuda::HeadLinearTask task{.weight = matrix,
                                           .heads = c.heads,
                                           .head_rows = c.head_rows,
                                           .first_row = c.first_row,
                                           .rows_used = c.rows_used,
                                           .x = lab.put(std::vector<float>(x.begin(), x.end()), sizeof(float)),
                                           .x_row_stride = c.heads * length.x,
                                           .x_head_stride = length.x,
                                           .y = y,
                                           .y_row_stride = row_stride,
                                           .y_head_stride = head_stride,
                                           .rows = c.rows};
  if (direction == Direction::plain) {
    kernels::cuda::head_linear_exact(lab.stream(), task);
  } else {
    kernels::cuda::head_linear_transposed_exact(lab.stream(), task);
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

void check_heads(const HeadCase& c, Direction direction, Random& random, size_t offset_bytes = 0) {
  CAPTURE(c);
  CAPTURE(offset_bytes);
  GpuLab lab(random.seed());
  const RandomWeight weight = random_weight(c.weight, random);
  const auto x = random.normals(size_t{c.rows} * c.heads * lengths(c, direction).x);
  const auto got = run_heads(lab, put(lab, weight, offset_bytes), x, c, direction);
  // Plain: a lane has a 32nd of the row, in chunks of four values or more: a rounding for each value and for the scale
  // of each chunk, and two for a product whose block ends within the chunk; five to add the lanes. Transposed: a
  // warp has an eighth of the rows, each with two roundings for the scaled input and its sum; eight to add the warps.
  const double steps =
      direction == Direction::plain ? 3 * (c.weight.in / 32.0 + 16) + 5 : 3 * (c.rows_used / 8.0 + 1) + 8;
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
  if (wanted.size() >= 64) CHECK(report.nmse < 200 * kRoundoff * kRoundoff);  // 60 steps or fewer, as on the CPU
}

std::vector<HeadCase> head_cases(Dtype dtype) {
  return {
      {{dtype, 3 * 20, 64, 0, 0}, 3, 20, 12, 8, 1},    {{dtype, 3 * 20, 100, 128, 128}, 3, 20, 0, 12, 2},
      {{dtype, 5 * 24, 130, 7, 9}, 5, 24, 16, 8, 3},   {{dtype, 2 * 48, 208, 32, 64}, 2, 48, 32, 16, 5},
      {{dtype, 2 * 10, 7, 1, 7}, 2, 10, 3, 1, 4},      {{dtype, 37, 33, 5, 33}, 1, 37, 2, 35, 6},
      {{dtype, 2 * 30, 160, 11, 40}, 2, 30, 7, 20, 3}, {{dtype, 2 * 300, 48, 128, 16}, 2, 300, 17, 283, 9},
  };
}

void check_direction(Direction direction) {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : kWeightTypes) {
    for (const HeadCase& c : head_cases(dtype))
      check_heads(c, direction, random);
    check_heads(head_cases(dtype)[0], direction, random, bits_of(dtype) / 8);
  }
}

/// Codes that are NaN make NaN where they take part and nowhere else.
void check_all_codes(Direction direction) {
  constexpr uint32_t kCodes = 256;
  const bool plain = direction == Direction::plain;
  RandomWeight weight{.bytes = std::vector<uint8_t>(kCodes * 16), .scales = {}, .matrix = {}, .shape = {}};
  // Plain: a row for each code, one column of it. Transposed: one row, a column for each code.
  weight.shape = plain ? WeightCase{Dtype::f8_e4m3, kCodes, 16, 0, 0} : WeightCase{Dtype::f8_e4m3, 1, kCodes, 0, 0};
  for (uint32_t code = 0; code < kCodes; ++code)
    weight.bytes[plain ? code * 16 + code % 16 : code] = static_cast<uint8_t>(code);
  GpuLab lab(1);
  const HeadCase c{weight.shape, 1, weight.shape.out, 0, weight.shape.out, 1};
  const auto y = run_heads(lab, put(lab, weight), std::vector<float>(plain ? 16 : 1, 1.0F), c, direction);
  REQUIRE(y.size() == kCodes);
  for (uint32_t code = 0; code < kCodes; ++code) {
    CAPTURE(code);
    const double wanted = decode_e4m3(static_cast<uint8_t>(code));
    if (std::isnan(wanted)) {
      CHECK(std::isnan(y[code]));
    } else {
      CHECK(static_cast<double>(y[code]) == wanted);
    }
  }
}

}  // namespace

TEST_CASE("cuda: head_linear: parts of heads anywhere among the blocks agree with double precision") {
  check_direction(Direction::plain);
}

TEST_CASE("cuda: head_linear_transposed: parts of heads anywhere among the blocks agree with double precision") {
  check_direction(Direction::transposed);
}

TEST_CASE("cuda: head_linear at the sizes of DeepSeek-V3's kv_b_proj") {
  Random random;
  CAPTURE(random.seed());
  check_heads({{Dtype::f8_e4m3, 2 * 256, 512, 128, 128}, 2, 256, 128, 128, 3}, Direction::plain, random);
  check_heads({{Dtype::f8_e4m3, 2 * 256, 512, 128, 128}, 2, 256, 0, 128, 3}, Direction::transposed, random);
  check_heads({{Dtype::bf16, 2 * 256, 512, 0, 0}, 2, 256, 128, 128, 1}, Direction::plain, random);
  check_heads({{Dtype::bf16, 2 * 256, 512, 0, 0}, 2, 256, 0, 128, 1}, Direction::transposed, random);
}

TEST_CASE("cuda: head_linear on rows that are longer than a tile") {
  Random random;
  CAPTURE(random.seed());
  check_heads({{Dtype::f32, 2 * 9, 2100, 4, 100}, 2, 9, 1, 7, 8}, Direction::plain, random);
  check_heads({{Dtype::f8_e4m3, 2 * 9, 2064, 4, 112}, 2, 9, 1, 7, 5}, Direction::plain, random);
  check_heads({{Dtype::f16, 2 * 9, 2064, 4, 112}, 2, 9, 1, 7, 5}, Direction::transposed, random);
}

TEST_CASE("cuda: head_linear: a token's bits depend on neither the tokens beside it nor the order of threads") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : kWeightTypes) {
    for (const Direction direction : {Direction::plain, Direction::transposed}) {
      HeadCase c{{dtype, 3 * 56, 304, 32, 48}, 3, 56, 16, 40, 1};
      const RandomWeight weight = random_weight(c.weight, random);
      constexpr uint32_t kRows = 11;
      const size_t x_row = size_t{c.heads} * lengths(c, direction).x;
      const auto x = random.normals(kRows * x_row);
      std::vector<float> alone;
      {
        GpuLab lab(1);
        const kernels::cuda::Matrix matrix = put(lab, weight);
        for (uint32_t r = 0; r < kRows; ++r) {
          const auto y = run_heads(lab, matrix, std::span(x).subspan(r * x_row, x_row), c, direction);
          alone.insert(alone.end(), y.begin(), y.end());
        }
      }
      const size_t y_row = alone.size() / kRows;
      for (const uint32_t rows : {2U, 4U, kRows}) {
        c.rows = rows;
        CAPTURE(c);
        GpuLab lab(rows);
        const auto y = run_heads(lab, put(lab, weight), std::span(x).first(rows * x_row), c, direction);
        CHECK(first_difference(y, std::span(alone).first(rows * y_row)) == y.size());
      }
    }
  }
}

TEST_CASE("cuda: head_linear: all 256 E4M3 codes decode exactly") {
  check_all_codes(Direction::plain);
  check_all_codes(Direction::transposed);
}

TEST_CASE("cuda: head_linear's launches are within every card's limits and cover heads, rows, columns and tokens") {
  constexpr unsigned kSharedOfAll = 99 << 10;  // compute capability 8.9 and 12.0
  for (const Dtype dtype : kWeightTypes) {
    for (const uint32_t rows : {1U, 3U, 8U, 9U, 4096U, 3'000'000U}) {
      for (const uint32_t in : {1U, 512U, 7168U, 100'003U}) {
        CAPTURE(rows);
        CAPTURE(in);
        kernels::cuda::HeadLinearTask task;
        task.weight.coding = kernels::coding_of(dtype).value();
        task.weight.in = in;
        task.heads = 128;
        task.head_rows = 320;
        task.rows_used = 129;
        task.rows = rows;
        for (const auto& choice :
             {kernels::cuda::choose_head_linear(task), kernels::cuda::choose_head_linear_transposed(task)}) {
          CHECK(choice.shape.shared_bytes <= kSharedOfAll);
          CHECK(choice.shape.grid_y <= 65'535);
          CHECK(choice.shape.grid_z <= 65'535);
          CHECK(uint64_t{choice.shape.grid_y} * choice.shape.grid_z * choice.tokens >= rows);
          CHECK(choice.shape.grid_x == choice.blocks_a_head * task.heads);
          const bool is_aligned = kernels::cuda::has_aligned_rows(kernels::cuda::form_of(task.weight));
          CHECK(choice.tokens == kernels::cuda::kernel_tokens(task.weight.coding, is_aligned, rows));
        }
        CHECK(kernels::cuda::choose_head_linear(task).blocks_a_head == 5);  // of 32 rows
        const auto transposed = kernels::cuda::choose_head_linear_transposed(task);
        CHECK(uint64_t{transposed.blocks_a_head} * transposed.lanes * 4 >= in);
        CHECK(transposed.shape.threads == 8 * transposed.lanes);
      }
    }
  }
}

TEST_CASE("cuda: common codings have a kernel for each number of tokens, rare ones two, rows at odd places one") {
  using kernels::Coding;
  using kernels::cuda::kernel_tokens;
  const auto all = [](Coding coding, bool is_aligned) {
    std::vector<uint32_t> found;
    for (const uint32_t rows : {1U, 2U, 3U, 4U, 5U, 8U, 9U, 4096U})
      found.push_back(kernel_tokens(coding, is_aligned, rows));
    return found;
  };
  for (const Coding common : {Coding::f8_e4m3, Coding::bf16, Coding::i4, Coding::u4, Coding::e2m1})
    CHECK(all(common, true) == std::vector<uint32_t>{1, 2, 4, 4, 8, 8, 8, 8});
  for (const Coding rare : {Coding::f16, Coding::f32, Coding::i8})
    CHECK(all(rare, true) == std::vector<uint32_t>{1, 8, 8, 8, 8, 8, 8, 8});
  for (const Coding any : {Coding::f8_e4m3, Coding::i8})
    CHECK(all(any, false) == std::vector<uint32_t>(8, 8));
}

TEST_CASE("cuda: the blocks of kv_b's halves keep an H100 busy, whatever the model has of heads") {
  constexpr uint64_t kH100 = 132;
  kernels::cuda::HeadLinearTask task{
      .weight = {kernels::WeightForm{kernels::Coding::f8_e4m3, 128 * 256, 512, 128, 128}},
      .heads = 128,
      .head_rows = 256,
      .rows_used = 128,
      .rows = 1};
  CHECK(kernels::cuda::choose_head_linear(task).shape.grid_x == 512);
  CHECK(kernels::cuda::choose_head_linear_transposed(task).lanes == 32);
  CHECK(kernels::cuda::choose_head_linear_transposed(task).shape.grid_x == 512);
  task.weight.coding = kernels::Coding::bf16;  // DeepSeek-V2-Lite
  task.heads = 16;
  CHECK(kernels::cuda::choose_head_linear_transposed(task).shape.grid_x == 128);
  task.rows = 64;
  CHECK(kernels::cuda::choose_head_linear_transposed(task).shape.grid_x *
            uint64_t{kernels::cuda::choose_head_linear_transposed(task).shape.grid_y} >=
        kH100);
}

}  // namespace dspack::test::head_linear_test
