// The order of sums that device/dot.cuh and head_linear.cu state, written down once more, one operation after the
// other: the kernels' bits are those of this order, however their weights come and inputs lie.
#include <cmath>

#include "kernels/cuda/linear/head_linear.h"
#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/weights.h"

namespace dspack::test::order_of_sums_test {
namespace {

constexpr uint32_t kWarp = 32;

/// Weights in rows that 16-byte reads fit: what a lane multiplies.
struct Case {
  WeightCase weight;
  RandomWeight random;

  [[nodiscard]] uint32_t per_chunk() const { return 128 / bits_of(weight); }
  [[nodiscard]] float scale(uint32_t row, uint32_t column) const {
    if (weight.block_out == 0) return 1;
    const uint32_t across = (weight.in - 1) / weight.block_in + 1;
    return random.scales[size_t{row / weight.block_out} * across + column / weight.block_in];
  }
  /// Without its scale: exact, since scales do not touch codes of these types.
  [[nodiscard]] float code(uint32_t row, uint32_t column) const {
    const size_t at = size_t{row} * weight.in + column;
    const auto half = [&] { return static_cast<uint16_t>(random.bytes[2 * at] | random.bytes[2 * at + 1] << 8); };
    switch (weight.dtype) {
      case Dtype::f8_e4m3: return f8_e4m3_to_f32(random.bytes[at]);
      case Dtype::bf16: return bf16_to_f32(half());
      default: return f16_to_f32(half());
    }
  }
  [[nodiscard]] kernels::cuda::Matrix put(GpuLab& lab) const {
    kernels::cuda::Matrix matrix{form_of(weight), {lab.put(random.bytes)}};
    if (!random.scales.empty()) matrix.planes[kernels::kScales] = lab.put(random.scales);
    return matrix;
  }

  /// Row . x as `lanes` lanes add it up (dot.cuh); warps of a row are added in their order.
  [[nodiscard]] float dot(uint32_t row, const float* x, uint32_t lanes) const {
    std::vector<float> totals(lanes);
    for (uint32_t chunk = 0; chunk < weight.in / per_chunk(); ++chunk) {
      float sum = 0;
      for (uint32_t column = chunk * per_chunk(); column < (chunk + 1) * per_chunk(); ++column)
        sum = std::fma(code(row, column), x[column], sum);
      float& total = totals[chunk % lanes];
      total = std::fma(sum, scale(row, chunk * per_chunk()), total);
    }
    float all = 0;
    for (uint32_t warp = 0; warp < lanes; warp += kWarp) {
      for (uint32_t apart = kWarp / 2; apart > 0; apart /= 2) {
        for (uint32_t lane = 0; lane < apart; ++lane)
          totals[warp + lane] += totals[warp + lane + apart];
      }
      all += totals[warp];
    }
    return lanes == kWarp ? totals[0] : all;
  }
};

std::vector<WeightCase> matrices(uint32_t out, uint32_t in) {
  return {{Dtype::f8_e4m3, out, in, 16, 128},
          {Dtype::f8_e4m3, out, in, 0, 0},
          {Dtype::bf16, out, in, 0, 0},
          {Dtype::f16, out, in, 8, 64}};
}

/// Where inputs begin: at 16 bytes, and not.
constexpr size_t kOffsets[] = {0, sizeof(float)};

}  // namespace

TEST_CASE("cuda: linear adds in the order that is written down, whatever the rows and where they lie") {
  Random random;
  CAPTURE(random.seed());
  // One warp a row, two and four; one tile of inputs and several; the end of a turn for some lanes only.
  for (const auto& [out, in] :
       std::initializer_list<std::pair<uint32_t, uint32_t>>{{37, 528}, {16, 2048}, {5, 4176}, {3, 9216}, {70, 1040}}) {
    for (const WeightCase& shape : matrices(out, in)) {
      CAPTURE(shape);
      const Case c{shape, random_weight(shape, random)};
      for (const uint32_t rows : {1U, 2U, 3U, 8U, 9U}) {
        const auto x = random.normals(size_t{rows} * in);
        for (const size_t offset : kOffsets) {
          GpuLab lab(random.seed() + rows);
          float* y = lab.poisoned(size_t{rows} * out);
          const kernels::cuda::LinearTask task{
              .weight = c.put(lab), .x = {lab.put(x, offset), in}, .y = {y, out}, .rows = rows};
          constexpr unsigned kMultiprocessors = 1;  // several turns of a block
          const auto choice = kernels::cuda::choose_linear(task.weight.coding, out, in, rows, kMultiprocessors);
          linear_exact(lab.stream(), task, kMultiprocessors);
          std::vector<float> wanted;
          for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t row = 0; row < out; ++row)
              wanted.push_back(c.dot(row, x.data() + size_t{r} * in, choice.warps_a_row * kWarp));
          }
          CAPTURE(rows);
          CAPTURE(offset);
          CHECK(lab.get(y, wanted.size()) == wanted);
        }
      }
    }
  }
}

TEST_CASE("cuda: head_linear and its transpose add in the order that is written down") {
  constexpr uint32_t kShares = 8;
  Random random;
  CAPTURE(random.seed());
  struct Heads {
    uint32_t heads, head_rows, first_row, rows_used, in;
  };
  // The last: heads enough that a block has 32 chunks of a row, and rows of several tiles.
  for (const Heads& h :
       {Heads{3, 48, 16, 29, 512}, Heads{2, 16, 0, 16, 1040}, Heads{1, 320, 8, 300, 1024}, Heads{260, 8, 1, 7, 256}}) {
    for (const WeightCase& shape : matrices(h.heads * h.head_rows, h.in)) {
      CAPTURE(shape);
      const Case c{shape, random_weight(shape, random)};
      for (const uint32_t rows : h.heads < 100 ? std::vector{1U, 2U, 5U, 9U} : std::vector{1U}) {
        CAPTURE(rows);
        const auto plain_x = random.normals(size_t{rows} * h.heads * h.in);
        const auto x = random.normals(size_t{rows} * h.heads * h.rows_used);
        for (const size_t offset : kOffsets) {
          CAPTURE(offset);
          GpuLab lab(random.seed() + rows);
          kernels::cuda::HeadLinearTask task{.weight = c.put(lab),
                                             .heads = h.heads,
                                             .head_rows = h.head_rows,
                                             .first_row = h.first_row,
                                             .rows_used = h.rows_used,
                                             .x = lab.put(plain_x, offset),
                                             .x_row_stride = h.heads * h.in,
                                             .x_head_stride = h.in,
                                             .y = lab.poisoned(x.size()),
                                             .y_row_stride = h.heads * h.rows_used,
                                             .y_head_stride = h.rows_used,
                                             .rows = rows};
          kernels::cuda::head_linear_exact(lab.stream(), task);
          std::vector<float> wanted;
          for (uint32_t at = 0; at < rows * h.heads; ++at) {
            for (uint32_t d = 0; d < h.rows_used; ++d)
              wanted.push_back(
                  c.dot(at % h.heads * h.head_rows + h.first_row + d, plain_x.data() + size_t{at} * h.in, kWarp));
          }
          CHECK(lab.get(task.y, wanted.size()) == wanted);

          std::swap(task.x_row_stride, task.y_row_stride);
          std::swap(task.x_head_stride, task.y_head_stride);
          task.x = lab.put(x, offset);
          task.y = lab.poisoned(plain_x.size());
          kernels::cuda::head_linear_transposed_exact(lab.stream(), task);
          wanted.assign(plain_x.size(), 0);
          for (uint32_t at = 0; at < rows * h.heads; ++at) {
            for (uint32_t j = 0; j < h.in; ++j) {
              for (uint32_t share = 0; share < kShares; ++share) {
                float sum = 0;
                for (uint32_t d = share; d < h.rows_used; d += kShares) {
                  const uint32_t row = at % h.heads * h.head_rows + h.first_row + d;
                  sum = std::fma(x[size_t{at} * h.rows_used + d] * c.scale(row, j), c.code(row, j), sum);
                }
                wanted[size_t{at} * h.in + j] += sum;
              }
            }
          }
          CHECK(lab.get(task.y, wanted.size()) == wanted);
        }
      }
    }
  }
}

}  // namespace dspack::test::order_of_sums_test
